// Rows of scripts/caption_table: published rules on one trained network. `captions.at_speed` fits a threshold for a layer
// speed-up, or a greater one where that errs less, on the calibration data; BEEM's own thresholds and CALM's are
// fitted as published. `skipped_blocks` says what later words attend to in blocks that a word skipped.
local captions = import 'beem/captions.libsonnet';
local policies = import 'beem/policies.libsonnet';

local speed = 2.0;
local max_length = 20;
local at_speed(name, policy) = { name: '%s, %gx or more' % [name, speed], policy: captions.at_speed(policy, speed) };
local calm(policy) = {
  type: 'decaying_threshold',
  policy: policy { thresholds: { type: 'risk_controlled', risk: 'disagreement', epsilon: 0.1, delta: 0.05 } },
  max_length: max_length,
};

[
  { name: 'first 4 blocks', policy: { type: 'fixed_exit', exit: 4 } },
  { name: 'BEEM-C', policy: policies['beem-c'] },
  { name: 'BEEM-A', policy: policies['beem-a'], skipped_blocks: ['propagate', 'recompute', 'copy'] },
  { name: 'PABEE, patience 1', policy: policies.patience(1) },
  { name: 'PABEE, patience 2', policy: policies.patience(2) },
  { name: 'CALM, margin', policy: calm({ type: 'margin' }), calibration_target: 'last_exit' },
  { name: 'CALM, state', policy: calm({ type: 'similarity', min_exit: 2 }), calibration_target: 'last_exit' },
  {
    name: 'MuE, decoder, 1.5x or more',
    policy: { type: 'decaying_threshold', policy: captions.at_speed({ type: 'similarity' }), decay: 'mue', max_length: max_length },
    skipped_blocks: 'copy',
  },
  at_speed('BEEM-C', { type: 'beem', weights: { type: 'cost', scale: 0.1 } }),
  at_speed('BEEM-A', { type: 'beem', weights: 'accuracy' }) + { skipped_blocks: ['propagate', 'recompute', 'copy'] },
  at_speed('confidence', { type: 'max_probability' }),
  at_speed('entropy (DeeBERT, ElasticBERT)', { type: 'entropy' }),
  at_speed('margin', { type: 'margin' }),
  at_speed('similarity', { type: 'similarity', min_exit: 2 }),
]
