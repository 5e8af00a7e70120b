// WNLI (GLUE): what does the pronoun stand for? The paper leaves this task out, as most do: its development set contradicts its
// training set.
(import 'beem/glue.libsonnet').task('wnli')
