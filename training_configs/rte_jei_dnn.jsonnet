// JEI-DNN on RTE: heads and gates trained by turns on a frozen network.
(import 'beem/glue.libsonnet').task('rte') + (import 'beem/methods.libsonnet').jei_dnn
