// AdamW with linear warm-up; biases and normalisations without weight decay, whatever an encoder calls them (LayerNorm,
// sa_layer_norm, attn_norm, ln_1, ...), in one regex, as none of them has all; BEEM calibrated at the end.
{
  adamw(lr, weight_decay=0.01):: {
    type: 'adamw',
    lr: lr,
    weight_decay: weight_decay,
    parameter_groups: [[['bias|[Nn]orm|\\bln_'], { weight_decay: 0.0 }]],
  },

  finetune(epochs, lr=3e-5, metric='+accuracy', patience=3, weight_decay=0.01, warmup=0.06):: {
    type: 'gradient_descent',
    num_epochs: epochs,
    patience: patience,
    validation_metric: metric,
    grad_norm: 1.0,
    optimizer: $.adamw(lr, weight_decay),
    learning_rate_scheduler: { type: 'linear_with_warmup', warmup_steps: warmup },
    callbacks: [{ type: 'calibrate_exits' }],
  },
}
