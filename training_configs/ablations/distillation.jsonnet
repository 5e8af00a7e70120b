// What the exits learn beside the labels: the last exit's probabilities, the KL divergence in either direction, or
// nothing more, as in BEEM's released code. The shipped configs have KL(p_L || p_i), as related code does.
local with(objective) = { model: { objective: { type: 'weighted_distillation' } + objective } };

{
  off: with({ distillation: 'off' }),
  // As the paper prints it: KL(p_i || p_L).
  'student to teacher': with({ distillation: 'student_teacher' }),
  symmetric: with({ distillation: 'symmetric' }),
  'teacher not detached': with({ distillation: 'teacher_student', detach_teacher: false }),
}
