"""FedEcho: FedBuff with distillation from the outputs of all clients' last models after each step."""

from __future__ import annotations

from .fedbuff import FedBuff


class FedEcho(FedBuff):
    """FedEcho (Wang, Ma and Chen 2025, arXiv:2511.19966, Algorithm 1).

    Rule     arrival of D_i = local - received:  S <- S + D_i,  m <- m + 1                                    (line 4)
               Y_i <- logits of received + D_i on the server's own samples                                    (line 5)
             m = M:  w <- w + eta S / M;  S <- 0, m <- 0                                            (lines 9-11, 17)
               then for each mini-batch of these samples:  w <- w - eta_d clip(grad f, nu)                (lines 12-15)
               f holds w's logits against the mean of all Y_i, see distillation.py
             The first half is FedBuff, the second what conf/algorithm/fedecho.yaml chooses: distillation=fedecho
    Upload   difference, shape (d,), with outputs_uc
    Tells    client, version
    State    FedBuff's and the distillation's: n u C numbers of u samples with C classes
    Memory   6 d and n u C
    Limits   distillation.steps=0 or distillation=none: FedBuff, bit for bit; the same clients arrive as with FedBuff
    Differs  one shuffled pass over the samples at each step (section 3.2; line 13 leaves it open); Adam with a fresh
             state, as in the experiments (equation 2 prints a plain step: optimizer=sgd); only clients that have
             reported count (line 14; line 1 begins with zeros)

    Without distillation, the model after each (client, upload) in turn, computed at w = 0 (trial.after_each):

    >>> after_each(FedEcho(buffer_size=2), (0, [2.0, 0.0]), (1, [4.0, 2.0]))
    [[0.0, 0.0], [3.0, 1.0]]
    """

    label = "FedEcho"
    upload_kinds = ("difference",)
