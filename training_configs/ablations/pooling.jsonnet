// What an exit reads of a layer: the first token or the mean of all, through a linear map with tanh that all exits
// share or that each has for itself, or without one.
local with(pooler, share) = { model: { encoder: { pooler: pooler, share_pooler: share } } };
local bert(pooling) = { type: 'bert_pooler', pooling: pooling };

{
  'first token, one pooler': with(bert('cls'), true),
  'first token, a pooler an exit': with(bert('cls'), false),
  'first token alone': with({ type: 'cls_pooler' }, true),
  'mean, one pooler': with(bert('mean'), true),
  'mean, a pooler an exit': with(bert('mean'), false),
  'mean alone': with({ type: 'boe', averaged: true }, true),
}
