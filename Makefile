# Every target calls a script, most of them the one of the same name, so that a machine without make can call the script; `make help`
# says which.
.PHONY: help up down clean-up test verify fix flake soak bench image test-vm

help:
	@echo 'make up        build, and run a cluster on this machine     (scripts/up)'
	@echo 'make down      stop it; its data stays                      (scripts/down)'
	@echo 'make clean-up  stop it and remove its data                  (scripts/down --purge)'
	@echo 'make test      build and run every suite                    (scripts/test)'
	@echo 'make soak      the same with full counts                    (POLIS_SOAK=1 scripts/test)'
	@echo 'make test-vm   boot it in virtual machines, all of them     (scripts/test-vm)'
	@echo 'make image     a disk image that boots: target/image/polis.raw (scripts/image)'
	@echo 'make flake N=100 TEST=name   one test, many times           (scripts/flake N TEST)'
	@echo 'make verify    all checks that change nothing               (scripts/verify)'
	@echo 'make fix       mend format and lints                        (scripts/fix)'
	@echo 'make bench     measure beside raw etcd                      (scripts/bench)'

up:
	@scripts/up

down:
	@scripts/down

clean-up:
	@scripts/down --purge

test:
	@scripts/test

soak:
	@POLIS_SOAK=1 scripts/test

N ?= 100
flake:
	@scripts/flake '$(N)' '$(TEST)'

verify:
	@scripts/verify

fix:
	@scripts/fix

bench:
	@scripts/bench

image:
	@scripts/image

test-vm:
	@scripts/test-vm
