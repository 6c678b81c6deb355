"""What holds a job back: a dry run of the next claim. Engines say what they know of a job."""

from tenure.features.feature import Feature
from tenure.features.why.data import Explain, Explained

FEATURE = Feature(results={Explain: Explained})
