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


def distillation_divergence(student: Tensor, teacher: Tensor, direction: str) -> Tensor:
    """
    `(...)` from `(..., labels)` log-probabilities in float32. `"teacher_student"`: KL(teacher || student), as in most
    code; `"student_teacher"`: KL(student || teacher), as FastBERT and BEEM print it; `"symmetric"`: half of each.
    """
    if direction == "teacher_student":
        return kl_divergence(teacher, student)
    if direction == "student_teacher":
        return kl_divergence(student, teacher)
    return (kl_divergence(teacher, student) + kl_divergence(student, teacher)) / 2


def softened_divergence(student: Tensor, teacher: Tensor, temperature: float, direction: str) -> Tensor:
    """`(...)` `distillation_divergence` of `(..., labels)` logits divided by the temperature, times its square."""
    log_p, log_q = ((logits.float() / temperature).log_softmax(-1) for logits in (student, teacher))
    return distillation_divergence(log_p, log_q.expand_as(log_p), direction) * temperature**2
