// The paper's Fig. 2: accuracy against speed as the one threshold of all exits varies, beside two rules that it compares
// with. The thresholds of BEEM are those of the paper's two grids.
local sweep(policy, key, values) = {
  model: { exit_policy: policy },
  grid: { ['model.exit_policy.' + key]: values },
  select: 'all',
};
local beem(weights) = sweep(
  { type: 'beem', weights: weights, thresholds: { type: 'fixed', values: 0.5 } },
  'thresholds.values',
  [0.3, 0.5, 0.6, 0.9, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0],
);

{
  'BEEM-A': beem({ type: 'accuracy' }),
  'BEEM-C': beem({ type: 'cost', scale: 0.1 }),
  PABEE: sweep({ type: 'patience', patience: 1 }, 'patience', [1, 2, 3, 4, 5, 6]),
  DeeBERT: sweep(
    { type: 'entropy', thresholds: { type: 'fixed', values: 0.1 } },
    'thresholds.values',
    [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
  ),
}
