"""NCM: the nearest class mean in a frozen feature space (Mensink et al., 2013; SimpleCIL: Zhou et al., 2023)."""

from etag.core.random import Stream
from etag.methods.base import MethodInfo
from etag.methods.closed_form import ClosedFormMethod, ClosedFormOptions
from etag.methods.registry import method
from etag.models.prediction import CosineRule


@method(
    "ncm",
    MethodInfo(
        title="NCM",
        color="#999999",
        summary="the class whose mean feature has the largest cosine with the image's; frozen backbone",
        source="Mensink et al., 2013; SimpleCIL: Zhou et al., 2023",
        stores="backbone; one mean per class, and second moments",
        head="none: cosines to class means",
    ),
)
class NCM(ClosedFormMethod[ClosedFormOptions]):
    """A mean m_k per class; the score of class k is cos(f, m_k)."""

    Options = ClosedFormOptions
    rule: CosineRule

    def new_rule(self, size: int, stream: Stream) -> CosineRule:  # noqa: ARG002
        """Cosines to the means."""
        return CosineRule(size)

    def fit(self) -> None:
        """The means."""
        self.rule.store(means=self.statistics.means.float())
