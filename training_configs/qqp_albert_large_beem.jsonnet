// QQP (GLUE) on ALBERT-large, as in the paper's Table 4.
(import 'beem/glue.libsonnet').task('qqp', model='albert-large-v2')
