// FastBERT on RTE: self-distillation into small attention heads, and normalized entropy.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').fastbert
