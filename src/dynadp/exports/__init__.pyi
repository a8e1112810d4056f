from .formats import FORMATS as FORMATS
from .formats import export as export
from .network import to_onnx as to_onnx
from .pipeline import to_pipeline as to_pipeline
from .plain_model import PlainModel as PlainModel
from .scorer import to_json as to_json
from .select import to_sql as to_sql
