from .consensus.topology import Topology as Topology
from .data.categories import Categorical as Categorical
from .data.categories import Hashed as Hashed
from .data.crosses import Cross as Cross
from .data.datasets.synthetic import census as census
from .data.datasets.uci import adult as adult
from .data.dates import Date as Date
from .data.labels import Classes as Classes
from .data.labels import Label as Label
from .data.labels import Target as Target
from .data.numbers import Bins as Bins
from .data.numbers import Numeric as Numeric
from .data.schema import Schema as Schema
from .data.vectors import Fourier as Fourier
from .data.vectors import Vector as Vector
from .engines.simulation import simulate as simulate
from .errors import DynadpError as DynadpError
from .estimators import NetworkClassifier as NetworkClassifier
from .estimators import NetworkRegressor as NetworkRegressor
from .planning.planner import plan as plan
from .planning.plans import Plan as Plan
from .privacy.cap import Cap as Cap
from .privacy.ledger.file import Ledger as Ledger
from .runs.model import Model as Model
from .runs.model import load_model as load_model
from .runs.training import train as train

__version__: str
