# The two commands of the README. Everything else is plain cargo: see CONTRIBUTING.md.

.PHONY: demo test

demo:
	@cargo xtask demo

test:
	@cargo xtask ci
