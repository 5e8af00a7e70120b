// RTE (GLUE) on ALBERT-large, as in the paper's Table 4.
(import 'beem/glue.libsonnet').task('rte', model='albert-large-v2')
