"""GAS: asynchronous split learning; the server's part learns from buffered activations that generated ones balance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Annotated

from ..errors import check
from ..ranges import absent, at_least, one_of, within
from ..stateful import Stateful
from ..types import NUMBER_BYTES, Recorder
from .base import check_it_fills
from .common.activation_statistics import (
    FILLS,
    FORMS,
    GROWTHS,
    RIDGES,
    ActivationStatistics,
    ExponentialWeights,
    fill_classes,
)
from .common.rounds import WeightedMean, Weights, weight_of
from .common.split import ServerSgd, SplitConfig, SplitRule
from .needs import Needs

if TYPE_CHECKING:
    import torch

    from ..types import Facts, Message, Reply


WIDEST = 4096  # activations with full covariances: those of AlexNet in the paper


@dataclass
class GasConfig(SplitConfig):
    """
    activation_buffer  Q_s, messages per step of the server's part
    model_buffer       Q_c, uploads per step of the clients' part
    weights            of the uploads: samples: n_i / sum n over the buffer | uniform
    answer             the reply to the message that fills the buffer is by the server's part before | after its step
    adjust             true: replies are gradients of the loss at logits + log P_i, P_i the label shares of the client
    generate           true: activations for classes of which the buffer has too few
    every              server steps, of which one generates
    covariance         of each class's a activations: full: a^2 numbers and a factorisation in each server step, a <=
                       4096 | diagonal: a numbers
    ridge              added to its diagonal
    ridge_at           sampling | merge: kept at every merge of new activations, as in the authors' code
    fill               batch: each class has at least a batch of rows | largest: as many as the largest class | exact: a
                       batch, more are left out
    weight_growth      activations of progress m weigh in the statistics: power: m^b | exponential: e^(b m)
    weight_exponent    b; 0: all weigh the same, 1 with power: linear
    """

    activation_buffer: Annotated[int | None, at_least(1, null="for the clients in flight")] = None
    model_buffer: Annotated[int | None, at_least(1, null="for the clients in flight")] = None
    weights: Weights = "samples"
    answer: Annotated[str, one_of("before", "after")] = "before"
    adjust: bool = True
    generate: bool = True
    every: Annotated[int, at_least(1)] = 1
    covariance: Annotated[str, one_of(*FORMS)] = "full"
    ridge: Annotated[float, at_least(0)] = 1e-5
    ridge_at: Annotated[str, one_of(*RIDGES)] = "sampling"
    fill: Annotated[str, one_of(*FILLS)] = "batch"
    weight_growth: Annotated[str, one_of(*GROWTHS), absent("power")] = "power"
    weight_exponent: Annotated[float, within("[0, 10]")] = 1.0

    def resolve(self, facts: Facts) -> None:
        super().resolve(facts)
        self.activation_buffer = self.activation_buffer or facts.concurrency
        self.model_buffer = self.model_buffer or facts.concurrency
        check_it_fills("model_buffer", self.model_buffer, facts)
        check(facts.iterations != 0, "model_buffer", self.model_buffer, "less: the budget ends before it is full once")

    def describe_cut_cost(self, width: int, classes: int) -> str | None:
        if not self.generate or self.covariance != "full":
            return None
        cost = f"a {width} x {width} factorisation for each of {classes} classes in a server step"
        allowed = f"diagonal with a cut of {width} activations: full takes at most {WIDEST}, as it needs {cost}"
        check(width <= WIDEST, "covariance", self.covariance, allowed)
        memory = NUMBER_BYTES * ActivationStatistics.numbers(classes, width, self.covariance) / 2**20
        return f"algorithm.covariance=full needs {cost}: {classes * width**3 / 6:.1e} multiply-adds, {memory:.0f} MiB"

    def idle(self, facts: Facts) -> dict[str, str]:
        names = ("every", "covariance", "ridge", "ridge_at", "fill", "weight_growth", "weight_exponent")
        return super().idle(facts) | ({} if self.generate else dict.fromkeys(names, "with algorithm.generate=false"))

    def adapt(self, needs: Needs) -> Needs:
        return replace(super().adapt(needs), uploads=self.model_buffer or 1)


class Gas(Recorder, SplitRule):
    """GAS (Yang, Liu 2024, arXiv:2409.01251, Algorithm 1).

    Rule     message (A, Y) of client i (line 5):
               reply dl_i(s; A, Y)/dA,  l_i = cross-entropy of logits + log P_i         (lines 12-13, equations 6 and 7)
               append (A, Y) to the activation buffer                                             (line 6, equation 4)
               with Q_s messages in it:  update each class's Gaussian                  (line 7, equations 11 and 12)
                 draw rows for classes with less than a batch of them, once every class has a Gaussian      (line 9)
                 s <- s - eta_s dl(s; buffer)/ds,  l plain cross-entropy; empty the buffer    (lines 10-11, eq. 5)
             upload u_i = received + D_i: append to the model buffer;  with Q_c uploads in it:
               u <- sum n_i u_i / sum n_i, empty the buffer                            (lines 15-19, equations 9 and 10)
             An activation weighs m^b in its class's Gaussian, m = 1 + K t + k with t server iterations at the
             dispatch and k the mini-batch of the work: stale ones weigh less. The paper's other weight is e^(b m)
    Upload   difference, of the clients' part, with the part that the work started from
    Steps    per Q_c uploads
    State    both buffers, the Gaussians, whether they have the buffer already (of a step that was stopped), momentum of
             s, server steps done (which draws are next)
    Memory   3 d + 3 Q_s B a + C (a + a^2); with `diagonal` the last term is 2 C a
    Limits   one client, Q_s = Q_c = 1, nothing generated or adjusted, answer=before, no momentum: SGD on the model
    Differs  equation 6 has a bracket misplaced, this is the softmax that is meant. The authors' code keeps the ridge at
             every merge (ridge_at=merge), weighs uploads equally, and shares one momentum among all clients

    The model after each (client, upload) in turn, all after one message each for which dl/ds = 1 (trial.after_each):

    >>> plain = {"generate": False, "adjust": False, "server_momentum": 0.0, "server_weight_decay": 0.0}
    >>> after_each(Gas(server_lr=0.5, activation_buffer=1, model_buffer=2, **plain), (0, [2.0]), (1, [4.0]))
    [[0.0, -1.0], [3.0, -1.0]]
    """

    label = "GAS"
    config: GasConfig
    needs = Needs(base=True)
    records_rows = True
    state_names = ("steps", "rows", "generated", "merged", "buffer")
    kept_vectors = 3

    def start(self, model_d, clients, upload_kind) -> None:
        super().start(model_d, clients, upload_kind)
        config = self.config
        self.mean = WeightedMean(self.client_d)
        self.sgd = ServerSgd(self.server_d, config)
        self.buffer: list[tuple[torch.Tensor, torch.Tensor, int]] = []  # activations, labels, progress of a message
        self.steps = self.rows = self.generated = 0  # server steps done; rows of the last one, and of them generated
        self.merged = False
        self._gradient_d = self.server_d.clone()
        self.log_share_nc = model_d.new_tensor(clients.log_shares()) if config.adjust else None
        self.statistics: ActivationStatistics | None = None
        self.growth = ExponentialWeights(config.weight_exponent) if config.weight_growth == "exponential" else None
        if config.generate:
            width, form = prod(self.part.activation), config.covariance
            self.statistics = ActivationStatistics(
                self.part.classes, width, form, config.ridge, config.ridge_at, like=model_d
            )

    def split_numbers(self, d_server: int, in_flight: int, message: int) -> int:
        assert self.config.activation_buffer is not None
        buffer = self.config.activation_buffer * message
        if not self.config.generate:
            return 2 * buffer  # as they came, and joined for the step
        width, classes = prod(self.part.activation), self.part.classes
        known = ActivationStatistics.numbers(classes, width, self.config.covariance)
        return known + 3 * buffer + classes * message  # joined once more with those generated

    def parts(self) -> dict[str, Stateful]:
        parts = {"mean": self.mean, "sgd": self.sgd}
        more = {"statistics": self.statistics, "growth": self.growth}
        return parts | {name: part for name, part in more.items() if part is not None}

    # -- messages ----------------------------------------------------------------------------------------------------

    def receive_message(self, message) -> bool:
        config = self.config
        self.server_samples = float(len(message.labels))
        if config.answer == "before":
            self._compute_reply(message)
        if not self.merged:  # else it is there: the step was stopped
            progress = 1 + message.k * message.base_iteration + message.stage
            self.buffer.append((message.activations.flatten(1).clone(), message.labels.clone(), progress))
        full = len(self.buffer) == config.activation_buffer
        if full:
            self._server_step()
        if config.answer == "after":
            self._compute_reply(message)
        return full

    def _compute_reply(self, message: Message) -> None:
        bias_c = None if self.log_share_nc is None else self.log_share_nc[message.client]
        reply = self.part.reply(self.server_d, message.activations, message.labels, bias_c)
        self._replies = [(message.client, reply)]

    def replies(self) -> list[tuple[int, Reply]]:
        return self._replies

    def _server_step(self) -> None:
        import torch

        self.rows_of_step = None  # memory for those of this one
        labels, progress = [y.cpu() for _, y, _ in self.buffer], [m for *_, m in self.buffer]
        rows_ba, labels_b = torch.cat([a for a, *_ in self.buffer]), torch.cat(labels)
        self.generated = 0
        if self.statistics is not None:
            sizes = [len(y) for y in labels]
            if not self.merged:
                of_rows = [m for m, size in zip(progress, sizes, strict=True) for _ in range(size)]
                progress_b = torch.tensor(of_rows, dtype=torch.double)
                if self.growth is None:
                    weight_b = progress_b**self.config.weight_exponent
                else:
                    weight_b = self.growth.weigh(self.statistics, progress_b)
                self.statistics.merge(rows_ba, weight_b, labels_b)
                self.merged = True
            if self.steps % self.config.every == 0:
                generator = torch.Generator(rows_ba.device).manual_seed(self.draws.integer(0, self.steps))
                rows_ba, labels_b, self.generated = fill_classes(
                    self.statistics, rows_ba, labels_b, max(sizes), self.config.fill, generator, self.raise_if_stopped
                )
        self.buffer.clear()
        self.merged = False
        self.rows_of_step = rows_ba, labels_b
        self.part.gradient(self.server_d, rows_ba, labels_b, self._gradient_d)
        self.sgd.step(self._gradient_d)
        self.steps += 1
        self.rows = len(labels_b)
        self.server_samples += self.rows

    # -- uploads -----------------------------------------------------------------------------------------------------

    def receive(self, upload) -> bool:
        self.server_samples = 0.0
        self.mean.add(upload.base_d + upload.vector_d, weight_of(upload, self.config.weights))
        if self.mean.count < self.needs.uploads_per_iteration(self.n):
            return False
        mean_d = self.mean.take()
        assert mean_d is not None
        self.client_d.copy_(mean_d)
        return True

    def stats(self) -> dict[str, float]:
        return {"rule/rows": float(self.rows), "rule/generated": float(self.generated)}
