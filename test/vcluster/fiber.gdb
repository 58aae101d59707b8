# SPDX-License-Identifier: Apache-2.0
# Kernel threads of the virtual cluster for gdb, on x86-64: `fiber N` prints the stack of thread N of the block that
# this OS thread runs, `fibers` what its warps wait for. See README.md.
define fiber
  set $fiber_of = &vc_self->fiber[$arg0]
  if $fiber_of == vc_self->running
    backtrace
  else
    set $fiber_sp = $sp
    set $fiber_bp = $rbp
    set $fiber_pc = $pc
    set $sp = (char *)$fiber_of->sp + 56
    set $rbp = ((long *)$fiber_of->sp)[5]
    set $pc = ((long *)$fiber_of->sp)[6]
    backtrace
    set $sp = $fiber_sp
    set $rbp = $fiber_bp
    set $pc = $fiber_pc
  end
end
define fibers
  set scheduler-locking on
  call (void)vc_block_dump(&vc_self->block)
  set scheduler-locking off
end
