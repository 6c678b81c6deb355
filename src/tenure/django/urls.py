"""The dashboard in a Django project:

urlpatterns = [path("tenure/", include("tenure.django.urls")), ...]
"""

from __future__ import annotations

from django.urls import re_path

from tenure.django.dashboard import dashboard

app_name = "tenure"
urlpatterns = [re_path(r"^(?P<path>.*)$", dashboard, name="dashboard")]
