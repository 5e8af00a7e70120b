// RTE (GLUE): does one sentence follow from another? BEEM-A on ALBERT-base, as in the paper's Table 1.
(import 'beem/glue.libsonnet').task('rte')
