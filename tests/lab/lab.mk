# The test nodes of tests/lab. Needs root on Debian or Ubuntu and says so where that is missing.
.PHONY: lab lab-down lab-packages molecule-lab

lab: $(VENV)/run.done  ## Bring up test nodes and a registry, print the inventory (root)
	@$(BIN)/python -m tests.lab up $(LAB_ARGS)

lab-down:  ## Remove every trace of the test nodes (root)
	@$(PYTHON) -m tests.lab down

lab-packages:  ## Install the system packages that the test nodes need (root, Debian or Ubuntu)
	@$(PYTHON) -m tests.lab packages --install

molecule-lab: $(VENV)/test.done  ## The test nodes proven: two container nodes, a registry, one virtual machine (root)
	@reason=$$($(BIN)/python -c 'from tests.lab import machine; print(machine.obstacle() or "")'); \
	if [ -n "$$reason" ]; then echo "molecule-lab: skipped: $$reason"; else molecule test -s lab; fi
