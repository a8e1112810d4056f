from . import attacks as attacks
from . import charts as charts
from . import paper as paper
from .explore.serve import explorer as explorer
from .explore.serve import serve as serve
from .explore.serve import token_of as token_of
from .explore.setting import PublicSetting as PublicSetting
from .page import write_report as write_report
