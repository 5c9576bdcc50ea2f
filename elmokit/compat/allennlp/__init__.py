"""AllenNLP's door (0.9 and before): change the import line of a script, and it gives the numbers that it gave there.

`Elmo` and `batch_to_ids` stood in `allennlp.modules.elmo`, `ElmoEmbedder` in `allennlp.commands.elmo`. As there, LSTM
state is carried from call to call, so that the same sentence gives other vectors each time; `stateful=False` turns that
off, and elmokit's own doors (`elmokit.load`, `ElmoModule`) never do it.
"""

from elmokit.compat.allennlp.elmo import Elmo, Representations
from elmokit.compat.allennlp.embedder import ElmoEmbedder
from elmokit.compat.allennlp.ids import batch_to_ids

__all__ = ["Elmo", "ElmoEmbedder", "Representations", "batch_to_ids"]
