// The paper's Fig. 3: the cost of an exit, lambda, of BEEM-C (its Fig. 1 has 0.1, its released ALBERT code 0.4). At one
// fixed threshold of its classical grid, and with thresholds fitted anew for each lambda.
local grid = { 'model.exit_policy.weights.scale': [0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0] };
local with(thresholds) = {
  model: { exit_policy: { type: 'beem', weights: { type: 'cost', scale: 0.1 }, thresholds: thresholds } },
  grid: grid,
  select: 'all',
};

{
  'threshold 1.5': with({ type: 'fixed', values: 1.5 }),
  'error rate': with({ type: 'error_rate' }),
}
