// JEI-DNN on RTE: heads and gates trained by turns on a frozen network.
(import 'lib/glue.libsonnet').task('rte', epochs=10) + (import 'lib/methods.libsonnet').jei_dnn
