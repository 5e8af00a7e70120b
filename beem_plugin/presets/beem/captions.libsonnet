// Image captioning with exits in the decoder: data, networks, and published methods as differences to them.
local policies = import 'policies.libsonnet';
local trainers = import 'trainers.libsonnet';

// A variable of the environment, or what holds without it.
local given(name, default) = if std.extVar(name) == '' then default else std.extVar(name);

local at_speed(policy, speedup=1.5) = policy { thresholds: { type: 'budget', speedup: speedup } };

// AdamW as for classification; cross-attention and the map between the sizes start at random, and learn faster.
local finetune(epochs, lr) = trainers.finetune(epochs, lr, '+token_accuracy') {
  optimizer+: {
    parameter_groups: [
      [['crossattention|ln_cross_attn|enc_to_dec_proj'], { lr: 3 * lr }],
      [['^decoder.exits'], { weight_decay: 0.0 }],
    ],
  },
};

// The image encoder without the map to the decoder's size.
local images_as_they_come = 'transformer_model\\.encoder\\.';

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
    batch_size=16,
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

  // Flickr8k, a frozen DINOv2 and a small decoder of GPT-2's shape, for machines without a pretrained GPT-2: the decoder
  // first learns to write captions from text alone (`flickr8k_lm`), then to look at images (`flickr8k`). Minutes on a CPU.
  // In the environment: FLICKR8K_FILE, the Karpathy split with the images beside it in `images`; CAPTION_TEXT, files of
  // captions for the language model, separated by commas (`caption_text` says which forms; default: the split's own
  // training captions); IMAGE_ENCODER, a hub name or a folder; CAPTION_LM, the folder in which the language model was
  // trained.
  local flickr8k_file = given('FLICKR8K_FILE', 'data/flickr8k/dataset_flickr8k.json'),
  local caption_text = given('CAPTION_TEXT', flickr8k_file),
  local caption_lm = given('CAPTION_LM', 'runs/flickr8k_lm'),
  local image_encoder = given('IMAGE_ENCODER', 'facebook/dinov2-small'),
  local small_gpt2(dropout, size=192, layers=6, heads=3) = {
    model_type: 'gpt2',
    n_embd: size,
    n_layer: layers,
    n_head: heads,
    n_positions: 32,
    resid_pdrop: dropout,
    embd_pdrop: dropout,
    attn_pdrop: dropout,
  },

  flickr8k_lm:: {
    dataset_reader: {
      type: 'caption_text',
      tokenizer: { type: 'trained_bpe', vocab_size: 3000, max_length: 32 },
      // Captions of images that the captioner is validated or tested on stay out.
      exclude_images: [flickr8k_file],
      holdout_fraction: 0.03,
    },
    train_data_path: caption_text + '[fit]',
    validation_data_path: caption_text + '[holdout]',
    model: {
      type: 'multi_exit_captioner',
      // Text alone trains no image encoder: the least that can be built stands for it.
      decoder: {
        backbone: {
          encoder: {
            model_type: 'vit',
            hidden_size: 16,
            num_hidden_layers: 1,
            num_attention_heads: 1,
            intermediate_size: 16,
            image_size: 16,
            patch_size: 16,
          },
          decoder: small_gpt2(0.0),
        },
      },
      objective: { type: 'weighted_distillation', distillation: 'off' },
      exit_policy: policies.full_depth,
    },
    data_loader: { batch_size: 64, shuffle: true },
    trainer: finetune(1, 2e-3) {
      no_grad: ['@image_encoder', '@cross_attention'],
      validation_metric: '-perplexity',
      optimizer: { type: 'adamw', lr: 2e-3, weight_decay: 0.01 },
      callbacks: [],
    },
  },

  flickr8k:: $.task(
    data={
      type: 'karpathy_captions',
      file: flickr8k_file,
      // 10 x 10 patches of DINOv2's: Flickr8k's photographs are small, and a CPU thanks for it.
      image_processor: { size: { shortest_edge: 140 }, crop_size: 140, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] },
    },
    tokenizer={ model_name: caption_lm + '/tokenizer', max_length: 32 },
    backbone={ encoder: image_encoder, decoder: small_gpt2(0.1) },
    epochs=6,
    lr=3e-4,
    batch_size=20,
  ) + {
    model+: { initialize_from: caption_lm },
    // An image's five captions side by side, so that it is encoded once.
    data_loader: { type: 'multiprocess', batch_sampler: { type: 'simple', batch_size: 20, rows_together: 5 } },
    trainer+: {
      no_grad: [images_as_they_come],
      // The decoder is pretrained; cross-attention is new.
      optimizer+: {
        parameter_groups: [
          [['crossattention|ln_cross_attn|enc_to_dec_proj'], { lr: 2e-3 }],
          [['^decoder.exits'], { weight_decay: 0.0 }],
        ],
      },
    },
  },

  // The same for a GPU: 224 pixels, a decoder of twelve blocks, more of everything; minutes there.
  local larger_gpt2(dropout) = small_gpt2(dropout, size=384, layers=12, heads=6),

  flickr8k_large_lm:: $.flickr8k_lm {
    model+: { decoder+: { backbone+: { decoder: larger_gpt2(0.1) } } },
    data_loader: { batch_size: 128, shuffle: true },
    trainer+: { num_epochs: 5, optimizer+: { lr: 1e-3 } },
  },

  flickr8k_large:: $.flickr8k {
    dataset_reader+: {
      image_processor+: { size: { shortest_edge: 224 }, crop_size: 224 },
      // A thousand images are decoded once, not in each epoch.
      keep_images: true,
    },
    model+: { decoder+: { backbone+: { decoder: larger_gpt2(0.1) } } },
    data_loader+: { batch_sampler+: { batch_size: 50 } },
    trainer+: {
      num_epochs: 20,
      patience: null,
      optimizer+: {
        lr: 3e-4,
        weight_decay: 0.05,
        parameter_groups: [
          [['crossattention|ln_cross_attn|enc_to_dec_proj'], { lr: 1.5e-3 }],
          [['^decoder.exits'], { weight_decay: 0.0 }],
        ],
      },
    },
  },

  // A config whose image encoder stays as it came, in every stage: stages say for themselves what they freeze.
  with_images_as_they_come(config):: config {
    trainer+: if std.objectHas(config.trainer, 'stages') then {
      stages: [stage { no_grad+: [images_as_they_come] } for stage in config.trainer.stages],
    } else { no_grad: [images_as_they_come] },
  },

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

  // LeeBERT-style (after Zhu 2021): every exit learns from the words and from every other exit, with weights learned on a
  // part of the training data; PABEE's rule. Its loss holds every pair of exits at once, hence the smaller chunks.
  leebert:: {
    model+: { objective: { type: 'mutual_distillation' }, exit_policy: policies.patience(3), chunk_elements: std.pow(2, 21) },
    trainer+: { callbacks+: [{ type: 'cross_level' }] },
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

  // DeeCap (Fei et al. 2022): every exit sees the states before it and imitations of those to come, under one vocabulary
  // matrix; every exit by its depth, and the imitations by their cosine; leave at low entropy, in nats. The lowest three
  // layers are detached: nothing above them trains them.
  deecap:: $.deecap_joint { model+: { decoder+: { fork: { type: 'scaled', above: 0.0, exits: [3] } } } },
  // With all layers trained by all exits.
  deecap_joint:: {
    model+: {
      decoder+: { head: 'past_future' },
      objective: { type: 'imitation' },
      exit_policy: at_speed({ type: 'entropy' }),
    },
  },

  // MuE (Tang et al. 2023): one head for all exits; leave when a block changes little, never in the first third, then at
  // a threshold that falls; skipped blocks take over keys and values. Images leave their encoder by the same rule, each
  // by itself. Thresholds of 0.9 and five beams are those of MuE's examples.
  mue(max_length=20, tau_image=0.9, tau=0.9, num_beams=5):: {
    model+: {
      decoder+: { head: { type: 'tied', share_norm: true } },
      objective: { type: 'weighted_distillation', layer_weights: 'uniform', distillation: 'off' },
      exit_policy: {
        type: 'decaying_threshold',
        policy: { type: 'similarity', thresholds: tau },
        decay: 'mue',
        max_length: max_length,
      },
      decoding+: { num_beams: num_beams, skipped_blocks: 'copy', image_exit: { threshold: tau_image } },
    },
  },
  // How similar states are depends on the network: with a threshold for one and a half times the speed; move `tau_image`
  // until `encoder_layer_speedup` is what you want.
  mue_at_speed(max_length=20, tau_image=0.99):: $.mue(max_length, tau_image, num_beams=1) {
    model+: { exit_policy+: { policy: at_speed({ type: 'similarity' }) } },
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
