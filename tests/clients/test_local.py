"""Local training against torch's own optimizers."""

import pytest
import torch

from asyncfl_bench.clients.local import LocalConfig, LocalTraining
from asyncfl_bench.types import Work


def noisy_quadratic(w, step, out):
    """Gradient of |w|^2 / 2 plus a term that depends on the step, any leading axes."""
    out.copy_(w).add_(0.1 * (step + 1))


def upload(start, kind="difference", steps=1, lr_now=None, center=None, **config):
    local = LocalTraining(LocalConfig(**config), kind)
    out = torch.empty_like(start)
    local.upload(start, noisy_quadratic, steps, out, lr_now, center)
    return out


START = torch.tensor([1.0, -2.0, 0.5])


def torch_difference(make, steps):
    w = START.clone().requires_grad_()
    optimizer = make([w])
    for step in range(steps):
        w.grad = torch.empty(3)
        noisy_quadratic(w.detach(), step, w.grad)
        optimizer.step()
    return w.detach() - START


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
def test_k_steps_of_sgd_are_those_of_torch(steps, momentum, weight_decay):
    expected = torch_difference(
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=momentum, weight_decay=weight_decay), steps
    )
    found = upload(START, steps=steps, lr=0.05, momentum=momentum, weight_decay=weight_decay)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 5])
def test_k_steps_of_adamw_are_those_of_torch_from_a_fresh_state(steps):
    expected = torch_difference(lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1), steps)
    for _ in range(2):  # the second piece of work starts as fresh as the first
        found = upload(START, steps=steps, optimizer="adamw", lr=0.01, weight_decay=0.1)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adamw", 0.0)])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_clipped_gradient_is_as_torch_clips_it_before_the_optimizer_decays(steps, optimizer, momentum):
    w = START.clone().requires_grad_()
    made = {
        "sgd": lambda: torch.optim.SGD([w], lr=0.05, momentum=momentum, weight_decay=0.1),
        "adamw": lambda: torch.optim.AdamW([w], lr=0.05, weight_decay=0.1),
    }[optimizer]()
    for step in range(steps):
        w.grad = torch.empty(3)
        noisy_quadratic(w.detach(), step, w.grad)
        assert w.grad.norm() > 1.5
        torch.nn.utils.clip_grad_norm_([w], 1.5)
        made.step()
    config = {"steps": steps, "optimizer": optimizer, "momentum": momentum, "lr": 0.05, "weight_decay": 0.1}
    torch.testing.assert_close(upload(START, clip=1.5, **config), w.detach() - START, rtol=1e-5, atol=1e-6)
    if optimizer == "sgd":  # AdamW hardly sees how long gradients are
        assert not torch.allclose(upload(START, **config), w.detach() - START, rtol=0.01)


def test_each_client_of_a_stack_is_clipped_alone_and_short_gradients_keep_their_bits():
    stack = torch.stack([START, 10 * START, torch.full((3,), -0.1)])  # the last one's gradient is zero
    clipped = upload(stack, "gradient", clip=4.0)
    plain = upload(stack, "gradient")
    assert torch.equal(clipped[0], plain[0]) and torch.equal(clipped[2], plain[2])
    assert clipped[1].norm() == pytest.approx(4.0)
    torch.testing.assert_close(clipped[1] / 4, plain[1] / plain[1].norm())
    pulled = upload(START, "gradient", clip=1.0, weight_decay=0.5)  # what is added is not clipped
    torch.testing.assert_close(pulled, (START + 0.1) / (START + 0.1).norm() + 0.5 * START)


def test_with_one_step_momentum_changes_nothing_bit_for_bit():
    plain, heavy = upload(START, lr=0.05), upload(START, lr=0.05, momentum=0.9)
    assert torch.equal(plain, heavy)
    torch.testing.assert_close(plain, -0.05 * (START + 0.1))


def test_a_gradient_upload_is_the_raw_gradient_plus_decay_whatever_the_local_step():
    torch.testing.assert_close(upload(START, "gradient", lr=7.0), START + 0.1)
    torch.testing.assert_close(upload(START, "gradient", weight_decay=0.5), 1.5 * START + 0.1)
    torch.testing.assert_close(upload(START, "gradient", optimizer="adamw", weight_decay=0.5), START + 0.1)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_stack_of_clients_gets_what_each_gets_alone(optimizer):
    stack = torch.stack([START, 2 * START, -START])
    together = upload(stack, steps=4, lr=0.05, optimizer=optimizer, weight_decay=0.01)
    alone = torch.stack([upload(row, steps=4, lr=0.05, optimizer=optimizer, weight_decay=0.01) for row in stack])
    torch.testing.assert_close(together, alone)


def test_the_received_model_is_left_as_it_is():
    start = START.clone()
    upload(start, steps=3, lr=0.5, momentum=0.9)
    upload(start, steps=3, optimizer="adamw")
    assert torch.equal(start, START)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("centered", [False, True])
def test_the_proximal_term_is_torchs_step_on_a_loss_with_that_term(optimizer, centered):
    center = torch.tensor([0.3, 0.0, -4.0]) if centered else START
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, weight_decay=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    }[optimizer]
    w = START.clone().requires_grad_()
    torchs = make([w])
    for step in range(6):
        loss = (w**2).sum() / 2 + 0.1 * (step + 1) * w.sum() + 0.7 / 2 * ((w - center) ** 2).sum()
        torchs.zero_grad()
        loss.backward()
        torchs.step()
    config = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.1, "proximal": 0.7, "optimizer": optimizer}
    found = upload(START, steps=6, center=center if centered else None, **config)
    torch.testing.assert_close(found, w.detach() - START, rtol=1e-5, atol=1e-6)


def test_the_local_step_decays_with_each_piece_of_a_clients_work():
    local = LocalTraining(LocalConfig(lr=0.4, lr_decay=0.5), "difference")
    assert [local.lr(Work(0, 9, count, 7, 1)) for count in range(4)] == [0.4, 0.2, 0.1, 0.05]
    assert LocalTraining(LocalConfig(lr=0.4), "difference").lr(Work(0, 9, 1000, 7, 1)) == 0.4


def test_or_it_decays_with_the_server_iterations_done_at_the_dispatch():
    local = LocalTraining(LocalConfig(lr=0.4, lr_decay=0.5, lr_decay_by="iteration"), "difference")
    assert [local.lr(Work(0, 9, 5, iteration, 1)) for iteration in range(4)] == [0.4, 0.2, 0.1, 0.05]


@pytest.mark.parametrize("steps", [1, 5])
def test_each_client_of_a_stack_takes_its_own_local_step(steps):
    stack, lrs = torch.stack([START, 2 * START]), (0.05, 0.3)
    config = {"steps": steps, "momentum": 0.9, "weight_decay": 0.01, "proximal": 0.2}
    together = upload(stack, lr_now=torch.tensor(lrs).unsqueeze(1), **config)
    alone = torch.stack([upload(row, lr_now=lr, **config) for row, lr in zip(stack, lrs, strict=True)])
    torch.testing.assert_close(together, alone)
    assert not torch.allclose(together[0], upload(START, lr_now=0.3, **config))
