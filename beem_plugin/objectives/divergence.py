"""Divergences between the exits' distributions, for distillation."""

import torch
from torch import Tensor

DIRECTIONS = ("teacher_student", "student_teacher", "symmetric")


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) = sum_c p(c) (ln p(c) - ln q(c)) over the last dimension."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def pairwise_cross_entropy(log_p: Tensor, log_q: Tensor) -> Tensor:
    """
    `(batch, exits i, exits j)`: CE(p_j, q_i) = -sum_c p_j(c) ln q_i(c) of all pairs of exits, from `(batch, exits,
    labels)` log-probabilities in float32.
    """
    # A matrix product, so that pairs of exits need no memory of the vocabulary's size; in float32, which mixed
    # precision would not leave it.
    with torch.autocast(log_p.device.type, enabled=False):
        return -(log_q @ log_p.exp().transpose(1, 2))


def pairwise_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`(batch, exits i, exits j)` KL(p_j || q_i); see `pairwise_cross_entropy`."""
    entropy = -(log_p.exp() * log_p).sum(-1)
    return pairwise_cross_entropy(log_p, log_q) - entropy.unsqueeze(1)


def softened_divergence(student: Tensor, teacher: Tensor, temperature: float, direction: str) -> Tensor:
    """
    `(...)` from `(..., labels)` logits divided by the temperature, times its square. `"teacher_student"`: KL(teacher ||
    student), as in most code; `"student_teacher"`: KL(student || teacher), as FastBERT and BEEM print it;
    `"symmetric"`: half of each. Of a regression's `(..., 1)` values, the squared difference.
    """
    if student.shape[-1] == 1:
        return (student - teacher).squeeze(-1).square()
    log_p, log_q = ((logits.float() / temperature).log_softmax(-1) for logits in (student, teacher))
    pair = (log_q.expand_as(log_p), log_p)
    if direction == "symmetric":
        return (kl_divergence(*pair) + kl_divergence(*reversed(pair))) / 2 * temperature**2
    return kl_divergence(*(pair if direction == "teacher_student" else reversed(pair))) * temperature**2
