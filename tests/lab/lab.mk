# The test nodes of tests/lab. Needs root on Debian or Ubuntu and says so where that is missing.
.PHONY: lab lab-down lab-packages

lab: $(VENV)/run.done  ## Bring up test nodes and a registry, print the inventory (root)
	@$(BIN)/python -m tests.lab up $(LAB_ARGS)

lab-down:  ## Remove every trace of the test nodes (root)
	@$(PYTHON) -m tests.lab down

lab-packages:  ## Install the system packages that the test nodes need (root, Debian or Ubuntu)
	@$(PYTHON) -m tests.lab packages --install
