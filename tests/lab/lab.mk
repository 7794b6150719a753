# The test nodes of tests/lab. Needs root on Debian or Ubuntu and says so where that is missing.
.PHONY: lab lab-down lab-packages molecule-driver-fault molecule-lab molecule-rdma-fault test-chaos test-lab

lab: $(VENV)/run.done  ## Bring up test nodes and a registry, print the inventory (root)
	@$(BIN)/python -m tests.lab up $(LAB_ARGS)

lab-down:  ## Remove every trace of the test nodes (root)
	@$(PYTHON) -m tests.lab down

lab-packages:  ## Install the system packages that the test nodes need (root, Debian or Ubuntu)
	@$(PYTHON) -m tests.lab packages --install

# Why the test nodes cannot run on this machine, empty when they can.
LAB_OBSTACLE = $(BIN)/python -c 'from tests.lab import machine; print(machine.obstacle() or "")'

# deploy and verify start vLLM many times and take twenty minutes each: LAB_SCENARIOS="lab deploy verify" runs them, too.
LAB_SCENARIOS ?= lab
molecule-lab: $(VENV)/test.done  ## Scenarios on test nodes (root); LAB_SCENARIOS="lab deploy verify" for more than the nodes themselves
	@reason=$$($(LAB_OBSTACLE)); \
	if [ -n "$$reason" ]; then echo "molecule-lab: left out: $$reason"; else \
	for scenario in $(LAB_SCENARIOS); do SECONDS=0; molecule test -s $$scenario; echo "molecule $$scenario: $$SECONDS s"; done; fi

# All of them (LAB_TESTS=tests/unit/lab) take more than an hour: images, weights, provisioning, pools and roles have nodes of their own, too.
LAB_TESTS ?= $(addprefix tests/unit/lab/test_,costume_running.py vm_running.py evidence_running.py small_remedies_running.py chaos_running.py)
test-lab: $(VENV)/test.done  ## Tests on a node of their own: driver upgrades, modules, reboots, hardware costumes (root)
	@reason=$$($(LAB_OBSTACLE)); \
	if [ -n "$$reason" ]; then echo "test-lab: left out: $$reason"; else \
	$(BIN)/python -m pytest -m lab --durations=5 $(LAB_TESTS); fi

molecule-driver-fault: $(VENV)/test.done  ## Faults of drivers on lab nodes, refused by name or mended (root)
	@reason=$$($(LAB_OBSTACLE)); \
	if [ -n "$$reason" ]; then echo "molecule-driver-fault: left out: $$reason"; else molecule test -s driver_fault; fi

molecule-rdma-fault: $(VENV)/test.done  ## Faults of RDMA on two virtual machines, explained or mended (root)
	@reason=$$($(LAB_OBSTACLE)); \
	if [ -n "$$reason" ]; then echo "molecule-rdma-fault: left out: $$reason"; else molecule test -s rdma_fault; fi

# Three of the seeds, others every day, are part of `make test`.
test-chaos: $(VENV)/test.done  ## A driver remediation killed at twenty random points, and run again (root, an hour)
	@reason=$$($(LAB_OBSTACLE)); \
	if [ -n "$$reason" ]; then echo "test-chaos: left out: $$reason"; else PYTHONPATH=collections $(BIN)/python -m tests.lab.chaos --all; fi
