"""A backend for Django's Tasks framework: `"BACKEND": "tenure.django.TenureBackend"`.

As an entry of INSTALLED_APPS, it adds the command `manage.py tenure_worker`.
"""

from tenure.django.backend import TenureBackend

__all__ = ["TenureBackend"]
