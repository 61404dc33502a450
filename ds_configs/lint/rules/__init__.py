"""The rules of lint, a module a family; each offers ``check(context)``, which yields findings."""
