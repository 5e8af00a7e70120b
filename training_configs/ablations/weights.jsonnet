// What each exit's vote counts in BEEM: its cost (BEEM-C) or its accuracy (BEEM-A), and variations of both.
local with(weights) = { model: { exit_policy: { type: 'beem', weights: weights } } };

{
  'BEEM-A': with({ type: 'accuracy' }),
  'BEEM-C': with({ type: 'cost', scale: 0.1 }),
  'BEEM-A, balanced': with({ type: 'accuracy', variant: 'balanced' }),
  'BEEM-A, above chance': with({ type: 'accuracy', variant: 'above_chance' }),
  // The released ALBERT code: layers counted from 0, so that the first exit has no vote.
  'BEEM-C, as released': with({ type: 'cost', scale: 0.4, offset: -1 }),
}
