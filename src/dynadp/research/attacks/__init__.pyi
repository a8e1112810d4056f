from .gallery import run_gallery as run_gallery
from .inference import Interval as Interval
from .inference import Membership as Membership
from .inference import membership as membership
from .reconstruction import Reconstruction as Reconstruction
from .reconstruction import reconstruct as reconstruct
from .reconstruction import small_node as small_node
from .setting import Setting as Setting
