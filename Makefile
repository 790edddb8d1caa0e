# Everything a newcomer runs. Plain GNU make 3.81 (the one macOS ships) and a POSIX shell are enough.
# `make` alone explains the targets: their text is what stands behind ## below.

MODE   ?= full
DEVICE ?= auto
JOBS   ?= 3
CPU    ?= Haswell
PYTHON ?= python3
ONLY   ?=
STRICT ?=
TORCH  ?= oldest
# As utils/metallab/mode.py reads METALLAB_STRICT, which holds where STRICT is not given.
strict = $(filter 1,$(STRICT))
ifneq ($(filter-out 0 1 no,$(STRICT))$(word 2,$(STRICT)),)
$(error STRICT is '$(STRICT)'; set it to 1 for a strict run, or to 0)
endif
FOLDER ?=
A      ?=
B      ?=
NAME   ?=
REF    ?=
ADD    ?=
BENCHES = $(wildcard build/bench/*.json)
FILE   ?= $(if $(word 2,$(BENCHES)),,$(BENCHES))
RUNS   ?= 3
RUN    ?=
BOOK   ?=
CLASS  ?=
ADDRESS ?= 127.0.0.1
PORT   ?= 8000
TLS    ?=
FACTOR ?=
LAB    ?= workshop
LABFLAGS ?=
FORCE  ?=
ANEW   ?=
MINUTES ?= 10
MODULE ?=
TESTS  ?=
MUTANT ?=
NIGHTLY ?=
SUITE  ?=
ALL    ?=
COREAI ?=
UPGRADE ?=

BIN := .venv/bin
PROXY := .venv/lib/node_modules/configurable-http-proxy
JAX := .venv-jax
CORE := .venv-coreai
BOOTSTRAP := $(PYTHON) -I utils/metallab/bootstrap.py
UV := $(BOOTSTRAP) uv
SRC := conftest.py utils metalsim tests tools book classroom/*.py data/*/*.py
# A compiler; what OpenCV loads; the clang whose sanitizers look into Metal shaders; what emulates another processor.
PACKAGES := g++ libgl1 libglib2.0-0 clang-19 libclang-rt-19-dev qemu-user

# Some containers set it. Nothing in .venv is compiled before its first import, so with it every process would compile
# PyTorch, TensorFlow and the rest again, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
targets := help setup packages lab hub run test mutants bench show book versus gate check-results progress stick page course lint \
  format lock clean setup-jax-mps verify-mac check-mac
# Whoever types the name of a folder means a target: make would say that there is nothing to be done, and succeed.
folders := $(filter-out tests $(targets),$(patsubst %/.,%,$(wildcard */.)))
.PHONY: $(targets) tests $(folders) a-class a-module a-page a-place a-suite a-torch
.NOTPARALLEL:  # make -j would measure several things at once

ifneq ($(firstword $(sort 3.81 $(MAKE_VERSION))),3.81)
$(error GNU make 3.81 or newer is needed: install it, and call it by its name, such as gmake)
endif

# Behind ## is what `make help` prints, behind ### what `make help ALL=1` prints as well; and so it is with variables.
help: ## this text, and with ALL=1 all targets and variables
	@echo 'make TARGET [VARIABLE=value ...]'
	@echo
	@awk -F ':.* ##+ ' '/^[a-z-]+:.* ##$(if $(ALL),#?) / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@awk -F '\t' '/^##$(if $(ALL),#?)\t/ { printf "  %-13s %s\n", $$2, $$3 }' $(MAKEFILE_LIST)

##	ONLY=14	run, test, bench, gate, versus: only the notebook with this number
##	DEVICE=auto	run, test, bench, gate, versus, hub: auto, mps, cuda, cpu or sim (verify-mac: mps or sim)
##	MODE=full	run, hub: full, or fast (small sizes, for a quick look)
##	STRICT=1	run, test: a page that does not run whole, as a tool is missing, is a failure
##	FORCE=1	setup: make .venv anew
##	COREAI=1	setup: also Apple's Core AI for notebook 42, in an environment of its own
##	SUITE=	test: another suite, in place of all tests: book, cpu, fuzz, hub, jax, lab, torch
##	CLASS=	hub: the file with the names of a class
###	FOLDER=	progress, stick: where pages are, where the copy goes
##	A= B=	versus: revisions, environments, NAME=value
##	FILE=	check-results: a file of results (default: the one that make bench wrote)
###	UPGRADE=	lock: 1 for the newest version of everything, or the packages that shall be the newest
###	ADD=1	check-results: copy the file into data/results, and name it in data/README.md
###	JOBS=3	test: how many tests at a time; measuring is never parallel
###	NIGHTLY=1	test: also what takes long, and each page on its other device
###	BOOK=	test SUITE=book: read this one, such as build/book
###	CPU=Haswell	test SUITE=cpu: a processor that qemu-user knows (qemu-x86_64 -cpu help)
###	TORCH=oldest	test SUITE=torch: a version of PyTorch, such as 2.13.0, or all
###	MINUTES=10	test SUITE=fuzz: how long all fuzzers look together
###	MODULE= TESTS=	mutants: what is changed, and the tests that should notice
###	LABFLAGS=	lab: more options, such as --allow-root in a container
###	ADDRESS= TLS=	hub: where it listens (127.0.0.1), and the folder with key.pem and cert.pem
###	PORT=8000	hub: this port and the next three
###	RUNS=3	bench: processes for each notebook
###	RUN=	book, show: the folder of a run (show: or of several of one machine, in quotes)
###	NAME=	page: number and words, such as 15_do_this
###	REF=	gate: the revision to compare this state with
###	FACTOR=1.05	versus, gate: what is called a difference (versus: 1.01, gate: 1.05)
###	ALL=1	clean: the environments as well

setup: ## make .venv and install everything into it; nothing if that is done (FORCE=1: make it anew)
	@command -v '$(PYTHON)' > /dev/null || { echo 'There is no $(PYTHON) on PATH: install Python 3.11 or 3.12, or name any Python 3: make PYTHON=/path/to/python3'; exit 1; }
	@$(BOOTSTRAP) $(if $(FORCE),--force)
	$(if $(COREAI),@$(MAKE) --no-print-directory $(CORE)/complete)

# In front of .venv, whose PyTorch it takes: what it lacks is looked up there. It is made anew when the lock or .venv has changed.
# Where its packages cannot be installed, `failed` says so: a strict run then does without them (utils/metallab/needs.py).
$(CORE)/complete: lock-coreai.txt $(wildcard .venv/pyvenv.cfg)
	rm -rf $(CORE)
	$(UV) venv --quiet --no-project --python .venv/bin/python $(CORE)
	$(UV) pip install --quiet --python $(CORE)/bin/python --no-deps --require-hashes -r lock-coreai.txt || { touch $(CORE)/failed; exit 1; }
	for own in $(CORE)/lib/python*/site-packages; do echo "import site; site.addsitedir('$(CURDIR)/.venv/$${own#$(CORE)/}')" > $$own/main.pth; done
	touch $@

packages: ### Debian, Ubuntu: install what set-up and some tests use besides Python, with apt-get (asks for root)
	$(if $(filter 0,$(shell id -u)),,sudo) apt-get update --quiet
	$(if $(filter 0,$(shell id -u)),,sudo) apt-get install --quiet --yes --no-install-recommends $(PACKAGES)

# Student copies are served alone. Of LAB=notebooks the whole checkout is served, opened at the folder: complete pages
# show pictures of data/images.
copies = $(filter workshop workshop/%,$(LAB))
root = $(if $(copies),/workshop)
opened = $(if $(filter %.ipynb,$(LAB)),'$(CURDIR)/$(LAB)',$(if $(copies),,--preferred-dir='$(CURDIR)/$(LAB)'))
first-page = $(if $(filter workshop workshop/,$(LAB)),--LabApp.default_url=/lab/tree/Contents.md)
lab-settings = --LabApp.app_settings_dir='$(CURDIR)/classroom/lab'
lab-layout = $(if $(copies),--LabApp.workspaces_dir='$(CURDIR)/workshop/.lab')

# JupyterLab would answer a name that is mistyped with an error of its configuration.
a-place:
	@test -n '$(copies)' || test -e '$(LAB)' \
	|| { echo 'There is no $(LAB): LAB= takes a folder or a notebook, such as notebooks'; exit 2; }

lab: a-place setup ## open your copies of the pages in JupyterLab (LAB=notebooks: the complete pages, with solutions)
	$(if $(copies),@$(BIN)/python -m metallab.authoring.workshop && $(BIN)/python -m metallab.lab_layout workshop/.lab)
	$(BIN)/jupyter lab --ip=127.0.0.1 $(lab-settings) $(lab-layout) $(first-page) $(if $(filter /%,$(LAB)),'$(LAB)',--notebook-dir='$(CURDIR)$(root)' $(opened)) $(LABFLAGS)

# What is missing is said before minutes are spent on installing.
a-class:
	@test -n '$(CLASS)' || { echo 'Name the file that holds the names of the class: make hub CLASS=names.txt'; exit 2; }
	@test -f '$(CLASS)' || { echo 'There is no file $(CLASS): CLASS= takes one with a name on each line'; exit 2; }

hub: a-class .venv/extra-classroom $(PROXY) ## serve the student copies to a class: make hub CLASS=names.txt (classroom/README.md)
	@$(BIN)/python -c 'from metallab import simulation; simulation.arm(required=True); import torch' \
	|| echo 'The simulated Apple GPU cannot be had here: cells that need it will say so.'
	METALLAB_CLASS='$(CLASS)' METALLAB_HUB_ADDRESS='$(ADDRESS)' METALLAB_HUB_PORT='$(PORT)' METALLAB_HUB_TLS='$(TLS)' \
	METALLAB_MODE='$(MODE)' METALLAB_DEVICE='$(DEVICE)' $(BIN)/python -m jupyterhub -f classroom/jupyterhub_config.py

# The report is made also when a notebook failed (1): it says so. The recipe ends with the status of the run, which make prints
# (Error 1); make itself ends with 2 then, as for any recipe that fails.
run: setup ## run every notebook on this machine and make the report
	$(serially)
	@status=0; \
	$(BIN)/python -m metallab.headless --mode '$(MODE)' --device '$(DEVICE)' $(if $(ONLY),--only '$(ONLY)') $(if $(STRICT),--strict='$(STRICT)') || status=$$?; \
	test $$status -eq 2 || $(BIN)/python -m metallab report || { reported=$$?; test $$status -ne 0 || status=$$reported; }; \
	exit $$status

# The book, and JupyterLab with the notebooks, in a real browser.
needs-book = .venv/extra-book .venv/extra-browser
suite-book = METALLAB_BOOK='$(BOOK)' $(BIN)/python -m pytest tests/browser/test_chrome.py tests/browser/test_book.py
needs-lab = .venv/extra-browser
suite-lab = $(BIN)/python -m pytest tests/browser/test_chrome.py tests/browser/test_lab.py
# 20 students at the hub, in fast mode; some tests want root, and 16 GB of memory.
needs-hub = .venv/extra-classroom .venv/extra-browser $(PROXY)
suite-hub = $(BIN)/python -m pytest tests/classroom
# The tests marked `processor` on an emulated one: CONTRIBUTING.md, "Another processor".
suite-cpu = OMP_WAIT_POLICY=PASSIVE $(BIN)/python tools/emulated.py '$(CPU)' -n '$(JOBS)' --dist worksteal
# The fuzzers that look at the same few hundred examples in make test, at random ones for some minutes.
suite-fuzz = METALLAB_FUZZ='$(MINUTES)' $(BIN)/python -m pytest tests/core/test_fuzz.py
# Notebooks 51 and 52 in fast mode, with this environment's JAX and with that of .venv-jax.
needs-jax = $(JAX)/complete
jax-pages = -m metallab.headless --mode fast --device '$(DEVICE)' --only 51 --only 52
suite-jax = $(BIN)/python $(jax-pages) && $(JAX)/bin/python -m pytest tests/frameworks/test_jax.py \
	&& METALLAB_OUT=build/fast-jax $(JAX)/bin/python $(jax-pages)

# The core of the simulated GPU's tests with the PyTorch that TORCH names, in an environment of its own; at night with all.
a-torch: setup
	$(BIN)/python tools/other_torch.py --install $(TORCH)
suite-torch = $(BIN)/python tools/other_torch.py --jobs '$(JOBS)' $(if $(NIGHTLY),all,$(TORCH))

# What cannot be tested is said before anything is installed.
SUITES := book cpu fuzz hub jax lab torch
a-suite:
	@$(if $(filter-out $(SUITES),$(SUITE))$(word 2,$(SUITE)),echo 'There is no suite $(SUITE): SUITE= takes one of $(SUITES).'; exit 2,:)
a-page:
	@$(if $(ONLY),test -n '$(wildcard notebooks/$(ONLY)_*.ipynb notebooks/$(ONLY).ipynb)' \
	|| { echo 'There is no page $(ONLY): ONLY= takes one of $(sort $(foreach page,$(wildcard notebooks/[0-9]*.ipynb),$(firstword $(subst _, ,$(notdir $(page))))))'; exit 2; },:)

# Tests share the cores: threads that wait for each other shall sleep, and not spin where another could compute.
ifndef SUITE
test: a-page lint ## lint, then every test; the notebooks in fast mode are among them
	OMP_WAIT_POLICY=PASSIVE METALLAB_TEST_DEVICE='$(DEVICE)' $(if $(strict),METALLAB_TEST_STRICT=1) $(BIN)/python -m pytest -n '$(JOBS)' --dist worksteal --durations=25 $(if $(NIGHTLY),-m '') $(if $(strict),-rs) $(chosen)
	$(if $(ONLY),,OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest tests/conformance -n '$(JOBS)' --dist worksteal $(if $(NIGHTLY),-m ''))
	$(if $(ONLY),,MTL_CAPTURE_ENABLED=1 PYTORCH_ENABLE_MPS_FALLBACK=1 $(BIN)/python -m pytest tests/conformance --alone)
else
test: a-suite setup $(needs-$(SUITE))
	$(suite-$(SUITE))
endif

tests: test
$(folders):
	@echo '$@ is a folder and no target: make help lists the targets.'; exit 2

# mutmut, which uv fetches when it is asked for, changes a copy: what is here stays as it is. The copy is called src, as
# mutmut wants it; beside it lies what tests read.
MUTMUT = OMP_NUM_THREADS=1 VIRTUAL_ENV='$(CURDIR)/.venv' $(UV) run --directory build/mutants --quiet --no-project --active --with mutmut==3.8.1 mutmut
MUTATED = $(subst .,/,$(MODULE)).py
a-module:
	@test '$(MUTANT)' || test -f 'utils/$(MUTATED)' -a -f '$(firstword $(TESTS))' || { \
	  echo 'Name a module and its tests: make mutants MODULE=metallab.units TESTS=tests/core/test_mode_units.py'; exit 2; }

mutants: a-module setup ### change a module, a little at a time: which changes do its tests not notice? (MODULE= TESTS=, then MUTANT=)
ifdef MUTANT
	@$(MUTMUT) show '$(MUTANT)'
else
	@rm -rf build/mutants
	@mkdir -p build/mutants/mutants
	@cp -R utils build/mutants/src
	@cp -R metalsim/src/metalsim build/mutants/src
	@cp -R tests pyproject.toml build/mutants/mutants
	@for name in $(filter-out build utils tests pyproject.toml,$(wildcard *)); do ln -s "../../../$$name" build/mutants/mutants; done
	@printf '%s\n' '[mutmut]' 'source_paths = src/$(MUTATED)' 'also_copy = src' 'pytest_add_cli_args_test_selection =' $(TESTS:%='  %') > build/mutants/setup.cfg
	@$(MUTMUT) run --max-children 1
	@$(MUTMUT) results
	@echo 'To see one of them: make mutants MUTANT=its.name'
endif

setup-jax-mps: ### on a Mac: make .venv-jax, a newer JAX with jax-mps (make lab BIN=.venv-jax/bin)
	@test "$$(uname -sm)" = 'Darwin arm64' || { echo 'jax-mps is for Apple silicon; make test SUITE=jax makes the same environment without it.'; exit 1; }
	@$(MAKE) --no-print-directory $(JAX)/complete
	@echo 'Open notebooks 51 and 52 with it: make lab BIN=$(JAX)/bin. Or run them: METALLAB_OUT=build/full-jax-mps $(JAX)/bin/python -m metallab.headless --only 51 --only 52'

# It is made anew when the lock or .venv, whose Python it has, has changed; the mark comes last.
$(JAX)/complete: lock-jax.txt $(wildcard .venv/pyvenv.cfg) | setup
	rm -rf $(JAX)
	$(UV) venv --quiet --no-project --python .venv/bin/python $(JAX)
	$(UV) pip install --quiet --python $(JAX)/bin/python --require-hashes -r lock-jax.txt
	$(UV) pip install --quiet --python $(JAX)/bin/python --no-deps --no-build-isolation -e . -e metalsim
	touch $@

bench: setup ## measure every notebook in RUNS fresh processes, into one file to send (ANEW=1: again)
	$(serially)
	$(BIN)/python -m metallab.headless.bench --runs '$(RUNS)' --device '$(DEVICE)' $(only) $(if $(ANEW),--anew)

# What only a Mac can answer, asked of one; without a Mac of the simulated GPU, so that the questions are known to work.
verify-mac: setup ## on a Mac: try what this project could not, and write one report to send back (ONLY=mps: a group)
	$(serially)
	@PYTHONPATH=tests $(BIN)/python -m conformance --device '$(DEVICE)' $(if $(ONLY),--only '$(ONLY)')

# What can be proved of a Mac without one, of what pip would install there.
check-mac: setup ### Linux: read a Mac's wheels and compare them with what this project says; downloads 0.2 GB once
	$(BIN)/python tools/check_mac.py

book: .venv/extra-book ## make a site of the executed pages in data/executed, in build/book (RUN=build/full-mps: of that run)
	$(BIN)/python book/build.py $(if $(RUN),'$(RUN)')

# For people who read before installing. Without RUN= the stored pages' text and the gallery are written anew.
show: setup ### put the pages of a finished run into data/executed and into docs/gallery.md (RUN=build/full-cpu)
	$(BIN)/python -m metallab.results.publish.show $(RUN)

versus: setup ## is B slower than A? Two live processes, in turns: make versus A=HEAD~1 B=HEAD (ONLY=19)
	$(serially)
	@test -n '$(A)' && test -n '$(B)' || { echo 'Name two revisions, or environments: make versus A=HEAD~1 B=HEAD'; exit 2; }
	$(BIN)/python -m metallab versus '$(A)' '$(B)' --device '$(DEVICE)' $(only) $(factor)

gate: setup ### what is slower than at a revision? As make versus, with 5 %: make gate REF=HEAD~1 (ONLY=19)
	$(serially)
	@git rev-parse --verify --quiet '$(REF)^{commit}' > /dev/null || { echo 'Name the revision to compare with: make gate REF=HEAD~1'; exit 2; }
	$(BIN)/python -m metallab versus '$(REF)' . --device '$(DEVICE)' $(only) --factor '$(or $(FACTOR),1.05)'

check-results: setup ### may this file of results be shown beside others? make check-results FILE=build/bench/mine.json
	@test -n '$(FILE)' || { echo 'Name one file of results: make check-results FILE=build/bench/mine.json'; exit 2; }
	$(BIN)/python -m metallab.results.check_results $(if $(ADD),--add) '$(FILE)'

progress: setup ## of a class: who solved which exercise, by the saved pages (FOLDER=: a folder for each student)
	@$(BIN)/python -m metallab.classroom.progress $(if $(FOLDER),'$(FOLDER)')

stick: ### a folder that is installed from without a network, on machines like this one: make stick FOLDER=build/stick
	@test -n '$(FOLDER)' || { echo 'Name a folder: make stick FOLDER=build/stick'; exit 2; }
	@$(BOOTSTRAP) stick '$(FOLDER)'

page: setup ### begin a new notebook: make page NAME=15_do_this
	$(BIN)/python -m metallab.authoring.new_page '$(NAME)'

course: setup ### write what is made from the pages' own descriptions: tables, paths, links between pages
	$(BIN)/python -m metallab.authoring.course_tables

# How code reads beyond that: tests/project/test_style.py.
lint: setup ### check style, types and common mistakes
	$(BIN)/ruff check --quiet $(SRC) notebooks
	$(BIN)/ruff check --quiet --select E501 --line-length 88 notebooks
	$(BIN)/ruff format --quiet --check $(SRC)
	$(BIN)/complexipy --quiet --failed
	@$(BIN)/mypy --no-error-summary

# Running a page writes its outputs into it, and what Jupyter says of the kernel's language.
LANGUAGE = $(addprefix metadata.language_info.,codemirror_mode file_extension mimetype nbconvert_exporter pygments_lexer version)
format: setup ## correct what lint can correct by itself; outputs and wrong answers leave the notebooks
	$(BIN)/ruff check --quiet --fix $(SRC)
	$(BIN)/ruff format --quiet $(SRC)
	$(BIN)/python -m metallab.authoring.exercise_cells
	$(BIN)/nbstripout --keep-id --extra-keys '$(LANGUAGE)' notebooks/*.ipynb

# An extra of pyproject.toml, such as .venv/extra-book: installed when a target needs it, again when the lock has changed.
.venv/extra-%: lock.txt | setup
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r pyproject.toml --extra '$*' -c lock.txt
	@touch $@

# JupyterHub's proxy runs on Node, which is in the extra. npm takes nothing younger than the date.
$(PROXY): | .venv/extra-classroom
	$(BIN)/npm install --global --prefix .venv --ignore-scripts --no-audit --no-fund --before=2026-11-01 configurable-http-proxy@5.3.0

# For Linux and macOS together; the variable makes uv choose wheels for macOS 15. Versions stay as they are while they
# fit; UPGRADE=1 takes the newest of all packages, UPGRADE='onnxruntime pyperf' the newest of these two. What conda's pip
# installs is the same list without hashes, which pip would otherwise want of this project as well.
RESOLVE = uv pip compile $(WHAT) --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
NEW = build/lock/$@
upgrades = $(if $(filter 1,$(UPGRADE)),--upgrade,$(UPGRADE:%=--upgrade-package %))
lock.txt: WHAT := pyproject.toml --all-extras
lock-jax.txt: WHAT := --group pyproject.toml:jax
lock-coreai.txt: WHAT := --group pyproject.toml:coreai --no-deps

lock: ### resolve lock*.txt and constraints.txt again after a change to pyproject.toml (UPGRADE=1: newest versions)
	@$(MAKE) --no-print-directory --always-make lock.txt lock-jax.txt lock-coreai.txt constraints.txt

lock.txt lock-jax.txt lock-coreai.txt:
	@mkdir -p build/lock
	if test -f $@; then cp $@ $(NEW); else rm -f $(NEW); fi
	MACOSX_DEPLOYMENT_TARGET=15.0 $(BOOTSTRAP) $(RESOLVE) $(upgrades) --quiet -o $(NEW)
	@if grep -nE '://|^-|@|/' $(NEW); then echo '$@ must hold versions and hashes only: not changed'; exit 1; fi
	@{ echo '# Every version that is installed, for Linux x86-64 and macOS arm64 together. Made by make lock:'; \
	   echo '# MACOSX_DEPLOYMENT_TARGET=15.0 $(RESOLVE)'; cat $(NEW); } > $(NEW).done
	mv $(NEW).done $@

constraints.txt:
	@{ echo '# lock.txt without its hashes, for environment.yml. Made by make lock.'; \
	   sed -e '/^#/d' -e '/^ *--hash/d' -e 's/ *\\$$//' lock.txt; } > $@

clean: ### remove build/: executed notebooks, results, reports (ALL=1: and the environments)
	rm -rf build $(if $(ALL),.venv .venv-python $(JAX) $(CORE))

only = $(if $(ONLY),--only '$(ONLY)')
factor = $(if $(FACTOR),--factor '$(FACTOR)')

# Fails when somebody asks for parallel measuring.
serially = @$(if $(findstring command,$(origin JOBS)),echo 'JOBS is for make test: measuring in parallel would spoil the numbers.'; exit 2,:)

# The notebooks' tests are named like test_runs_from_top_to_bottom[01_time_it_right].
# With them, what looks at all pages: rows and links, names that they call, pages as they ran.
chosen = $(if $(ONLY),$(addprefix tests/,project/test_notebooks.py project/test_documents.py results/test_executed.py) \
  -k '[$(ONLY)_ or [$(ONLY)] or each_notebook or every_notebook or readme_lists')
