// Image captioning with exits in the decoder: data, networks, and published methods as differences to them.
local policies = import 'policies.libsonnet';
local trainers = import 'trainers.libsonnet';

local at_speed(policy, speedup=1.5) = policy { thresholds: { type: 'budget', speedup: speedup } };

// AdamW as for classification; cross-attention and the map between the sizes start at random, and learn faster.
local finetune(epochs, lr) = trainers.finetune(epochs, lr, '+token_accuracy') {
  optimizer+: {
    parameter_groups: [
      [['crossattention', 'ln_cross_attn', 'enc_to_dec_proj'], { lr: 3 * lr }],
      [['^decoder.exits'], { weight_decay: 0.0 }],
    ],
  },
};

{
  at_speed:: at_speed,

  // A captioning task. `data` is a dataset reader without its tokenizer; a tenth of the training images is held out for
  // calibration, the validation split picks the best epoch, the test split is only ever reported.
  task(data, tokenizer, backbone, epochs, lr, batch_size=32, max_length=20, policy=policies['beem-a']):: {
    dataset_reader: data { tokenizer: tokenizer },
    train_data_path: 'train[fit]',
    validation_data_path: 'val',
    test_data_path: 'test',
    evaluate_on_test: true,
    model: {
      type: 'multi_exit_captioner',
      decoder: { backbone: backbone },
      objective: { type: 'weighted_distillation' },
      exit_policy: policy,
      decoding: { max_length: max_length, skipped_blocks: 'propagate' },
    },
    data_loader: { batch_size: batch_size, shuffle: true },
    validation_data_loader: { batch_size: 64 },
    trainer: finetune(epochs, lr),
  },

  // COCO in Karpathy's split, a Swin encoder and GPT-2: the paper's second half. COCO_FILE in the environment names
  // dataset_coco.json; the images lie beside it in `images`.
  coco:: $.task(
    data={
      type: 'karpathy_captions',
      file: std.extVar('COCO_FILE'),
      image_processor: { model_name: 'microsoft/swin-base-patch4-window7-224-in22k' },
    },
    tokenizer={ model_name: 'gpt2', max_length: 32 },
    backbone={ encoder: 'microsoft/swin-base-patch4-window7-224-in22k', decoder: 'gpt2' },
    epochs=10,
    lr=3e-5,
  ),

  // Generated scenes of shapes: seen whole, learnt in minutes on a CPU, nothing to download.
  shapes:: $.task(
    data={ type: 'shapes_captions' },
    tokenizer='words',
    backbone={
      encoder: {
        model_type: 'vit',
        hidden_size: 96,
        num_hidden_layers: 3,
        num_attention_heads: 3,
        intermediate_size: 192,
        image_size: 32,
        patch_size: 4,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
      },
      decoder: {
        model_type: 'gpt2',
        n_embd: 96,
        n_layer: 6,
        n_head: 3,
        n_positions: 32,
        resid_pdrop: 0.0,
        embd_pdrop: 0.0,
        attn_pdrop: 0.0,
      },
    },
    epochs=24,
    lr=2e-3,
    batch_size=64,
  ) + { trainer+: { patience: null, optimizer: { type: 'adamw', lr: 2e-3 } } },

  // The network alone: no exit but the last.
  final:: { model+: { objective: { type: 'final_exit' }, exit_policy: policies.full_depth } },

  // The decoder's first blocks, trained as a decoder of its own.
  reduced(layers):: {
    model+: {
      decoder+: { backbone+: { num_layers: layers }, exit_layers: [layers] },
      objective: { type: 'final_exit' },
      exit_policy: policies.full_depth,
    },
  },

  beem_a:: { model+: { exit_policy: policies['beem-a'] } },
  beem_c:: { model+: { exit_policy: policies['beem-c'] } },

  // Exits at some blocks only, and a shortlist of words for asking them: where a head costs more than the blocks it saves.
  cheap(layers, shortlist=100):: { model+: { decoder+: { exit_layers: layers, shortlist: shortlist } } },

  // PABEE (Zhou et al. 2020): every exit by its depth; leave when `patience` exits in a row say the same word.
  pabee:: {
    model+: {
      objective: { type: 'weighted_distillation', layer_weights: 'linear', distillation: 'off' },
      exit_policy: policies.patience(3),
    },
  },

  // DeeBERT (Xin et al. 2020): fine-tune the network; freeze it and train the exits; leave at low entropy, in nats. A tied
  // head has too little of its own to learn behind a frozen network.
  deebert:: {
    model+: { decoder+: { head: 'linear_shortcut' }, exit_policy: at_speed({ type: 'entropy' }) },
    trainer+: {
      type: 'staged',
      stages: [
        { name: 'backbone', objective: { type: 'final_exit' }, no_grad: ['@early_exits'] },
        { name: 'exits', objective: { type: 'early_exits', reduction: 'sum' }, no_grad: ['@backbone'], validation_metric: '-loss', optimizer: { type: 'adamw', lr: 1e-4 } },
      ],
    },
  },

  // ElasticBERT (Liu et al. 2022): one training, all exits alike.
  elasticbert:: {
    model+: {
      objective: { type: 'weighted_distillation', layer_weights: 'uniform', distillation: 'off' },
      exit_policy: at_speed({ type: 'entropy' }),
    },
  },

  // FastBERT (Liu et al. 2020): fine-tune the network; freeze it and let every exit learn the last one's probabilities.
  fastbert:: {
    model+: { decoder+: { head: 'linear_shortcut' }, exit_policy: at_speed({ type: 'entropy', normalized: true }) },
    trainer+: {
      type: 'staged',
      stages: [
        { name: 'teacher', objective: { type: 'final_exit' }, no_grad: ['@early_exits'] },
        { name: 'distillation', objective: { type: 'self_distillation' }, no_grad: ['@backbone'], validation_metric: '-loss', optimizer: { type: 'adamw', lr: 1e-4 } },
      ],
    },
  },

  // LeeBERT-style (after Zhu 2021): every exit learns from the words and from every other exit; PABEE's rule.
  // Its loss holds every pair of exits at once, hence the smaller chunks.
  leebert:: {
    model+: { objective: { type: 'mutual_distillation' }, exit_policy: policies.patience(3), chunk_elements: std.pow(2, 21) },
  },

  // CapEEN (Bajpai and Hanawal 2024): fine-tune the network; freeze it and train a vocabulary matrix an exit, half by the
  // words and half by the last exit's probabilities; leave when confident.
  capeen:: {
    model+: {
      decoder+: { head: 'untied' },
      objective: { type: 'weighted_distillation', layer_weights: 'uniform' },
      exit_policy: at_speed({ type: 'max_probability' }),
    },
    trainer+: {
      type: 'staged',
      stages: [
        { name: 'backbone', objective: { type: 'final_exit' }, no_grad: ['@early_exits'] },
        { name: 'exits', no_grad: ['@backbone'], validation_metric: '-loss', optimizer: { type: 'adamw', lr: 1e-4 } },
      ],
    },
  },

  // MuE (Tang et al. 2023), in the decoder: one head for all exits; leave when a block changes little, never in the first
  // third, then at a threshold that falls; skipped blocks take over keys and values.
  mue(max_length=20):: {
    model+: {
      decoder+: { head: { type: 'tied', share_norm: true } },
      objective: { type: 'weighted_distillation', layer_weights: 'uniform', distillation: 'off' },
      exit_policy: { type: 'decaying_threshold', policy: at_speed({ type: 'similarity' }), decay: 'mue', max_length: max_length },
      decoding+: { skipped_blocks: 'copy' },
    },
  },

  // CALM (Schuster et al. 2022): one head for all exits, trained by depth. Its three rules: the lead of the most probable
  // word, the similarity of states from the second block on, and a classifier that learns whether the last exit agrees.
  // Calibrated so that words differ from the last exit's in one of ten at most.
  local calm = {
    model+: {
      decoder+: { head: { type: 'tied', share_norm: true } },
      objective: { type: 'weighted_distillation', layer_weights: 'linear', distillation: 'off' },
      calibration_target: 'last_exit',
    },
  },
  local consistent = { type: 'risk_controlled', risk: 'disagreement', epsilon: 0.1, delta: 0.05 },
  local decaying(policy, max_length) = {
    type: 'decaying_threshold',
    policy: policy { thresholds: consistent },
    max_length: max_length,
  },
  calm_softmax(max_length=20):: calm { model+: { exit_policy: decaying({ type: 'margin' }, max_length) } },
  calm_state(max_length=20):: calm { model+: { exit_policy: decaying({ type: 'similarity', min_exit: 2 }, max_length) } },
  calm_learned:: calm {
    model+: {
      decoder+: { signals: [{ type: 'predicted_error', detach: true }] },
      exit_policy: { type: 'predicted_error', thresholds: consistent },
    },
  },
}
