// The paper's Table 5: one threshold for all exits, the best on calibration data ("w/o fix"), or one an exit from error
// rates, its Eq. 4 ("w fix"). Its rule bounds the error of those who leave by the last exit's error on all; the third
// of each bounds it by the last exit's error on the same samples.
local classical = { type: 'best_on_validation' };
local error_rate = { type: 'error_rate' };
local same_samples = { type: 'error_rate', constraint: 'same_samples' };
local with(weights, thresholds) = { model: { exit_policy: { type: 'beem', weights: weights, thresholds: thresholds } } };
local accuracy = { type: 'accuracy' };
local cost = { type: 'cost', scale: 0.1 };

{
  'BEEM-A, classical': with(accuracy, classical),
  'BEEM-A, error rate': with(accuracy, error_rate),
  'BEEM-A, same samples': with(accuracy, same_samples),
  'BEEM-C, classical': with(cost, classical),
  'BEEM-C, error rate': with(cost, error_rate),
  'BEEM-C, same samples': with(cost, same_samples),
}
