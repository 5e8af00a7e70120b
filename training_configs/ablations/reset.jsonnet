// What BEEM's score becomes when an exit gives another label than the one before: that exit's own vote, as in the
// paper, or zero, as in the released code.
local with(weights, rule) = { model: { exit_policy: { type: 'beem', weights: weights, on_disagreement: rule } } };
local accuracy = { type: 'accuracy' };
local cost = { type: 'cost', scale: 0.1 };

{
  'BEEM-A, restart': with(accuracy, 'restart'),
  'BEEM-A, zero': with(accuracy, 'zero'),
  'BEEM-C, restart': with(cost, 'restart'),
  'BEEM-C, zero': with(cost, 'zero'),
}
