"""The model forge: everything between a package registry and a bundle that the
server loads.

`errors`, `places`, `progress`, `fetch`, `environment`, `manifest` and
`components` need only the standard library, because they run before the build
environment exists. The modules named by a recipe (`decoder`, `encoder`,
`tfjs`, ...) convert weights and run inside it.
"""
