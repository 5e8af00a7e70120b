// Exit policies by their published names. Each is one block: `model.exit_policy`.
{
  // BEEM with weights from each exit's accuracy, and from its cost; thresholds an exit from error rates (Eq. 4).
  'beem-a':: { type: 'beem', weights: { type: 'accuracy' }, thresholds: { type: 'error_rate' } },
  'beem-c':: { type: 'beem', weights: { type: 'cost', scale: 0.1 }, thresholds: { type: 'error_rate' } },
  // One threshold for all exits, chosen by accuracy: the paper's ablation "without" error-rate thresholds.
  'beem-classical':: { type: 'beem', weights: { type: 'cost', scale: 0.1 }, thresholds: { type: 'best_on_validation' } },
  // The rule as it was released for ALBERT: layers counted from 0, slope 0.4, the score lost at every change of label.
  'beem-release-albert':: {
    type: 'beem',
    weights: { type: 'cost', scale: 0.4, offset: -1 },
    on_disagreement: 'zero',
    thresholds: { type: 'best_on_validation', grid: [0.5, 1.0, 1.5, 2.0, 2.5, 3.0] },
  },
  // What was released for BERT leaves by patience alone.
  'beem-release-bert':: $.patience(6),

  patience(patience):: { type: 'patience', patience: patience },
  confidence(threshold):: { type: 'max_probability', thresholds: threshold },
  // A confidence threshold an exit, calibrated so that those who leave err no more than the last exit does on them.
  'confidence-calibrated':: {
    type: 'max_probability',
    thresholds: { type: 'error_rate', grid: 'observed', constraint: 'same_samples' },
  },
  // Leaves when no later exit is expected to gain enough accuracy for its layers; here at twice the speed.
  'expected-gain':: { type: 'expected_gain', thresholds: { type: 'budget', speedup: 2.0 } },
  // Learned without labels while predicting: CeeBERT's threshold, and SplitEE's split between two machines.
  ceebert(mu=0.1):: {
    type: 'online',
    policy: { type: 'max_probability' },
    grid: [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95],
    mu: mu,
  },
  splitee(threshold, offload=1.0):: {
    type: 'split',
    policy: { type: 'max_probability', thresholds: threshold },
    offload: offload,
  },
  full_depth:: { type: 'final' },
}
