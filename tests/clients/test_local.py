"""Local training against torch's own optimizers."""

import pytest
import torch

from asyncfl_bench.clients.local import LocalConfig, LocalTraining


def noisy_quadratic(w, step, out):
    """Gradient of |w|^2 / 2 plus a term that depends on the step, any leading axes."""
    out.copy_(w).add_(0.1 * (step + 1))


def upload(start, kind="difference", steps=1, **config):
    local = LocalTraining(LocalConfig(**config), kind)
    out = torch.empty_like(start)
    local.upload(start, noisy_quadratic, steps, out)
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
