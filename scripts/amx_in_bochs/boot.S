# From a multiboot loader to main() in C++: identity-maps 1 GiB, enters long mode, and switches SSE,
# AVX, AVX-512 and AMX on. Nothing else is there: no interrupts, no system.
.section .multiboot, "a"
.align 4
.long 0x1BADB002, 3, -(0x1BADB002 + 3)

.section .text.boot, "ax"
.code32
.globl _start
_start:
  cli
  movl $stack_top, %esp
  movl $pdpt + 3, pml4
  movl $pd + 3, pdpt
  movl $pd, %edi
  movl $0x83, %eax  # present, writable, a page of 2 MiB
  movl $512, %ecx
1:
  movl %eax, (%edi)
  addl $0x200000, %eax
  addl $8, %edi
  loop 1b
  movl $pml4, %eax
  movl %eax, %cr3
  movl %cr4, %eax
  orl $(1 << 5 | 1 << 9 | 1 << 10 | 1 << 18), %eax  # PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
  movl %eax, %cr4
  movl $0xC0000080, %ecx  # EFER
  rdmsr
  orl $0x100, %eax  # LME
  wrmsr
  movl %cr0, %eax
  andl $~4, %eax  # no EM
  orl $0x80000002, %eax  # PG, MP
  movl %eax, %cr0
  lgdt gdtr
  ljmp $8, $long_mode

.code64
long_mode:
  movw $16, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  movl $stack_top, %esp
  xorl %ecx, %ecx
  xorl %edx, %edx
  movl $(0xE7 | 3 << 17), %eax  # x87, SSE, AVX, AVX-512, tile configuration and data
  xsetbv
  movl $tls_end, %eax  # thread-local variables end where fs points to
  movq %rax, (%rax)
  xorl %edx, %edx
  movl $0xC0000100, %ecx  # FS_BASE
  wrmsr
  call main
2:
  hlt
  jmp 2b

.align 8
gdt: .quad 0, 0x00AF9A000000FFFF, 0x00CF92000000FFFF
gdtr: .word 23
  .long gdt

.bss
.align 4096
pml4: .skip 4096
pdpt: .skip 4096
pd: .skip 4096
.skip 262144
stack_top:
.align 64
.skip 65536
tls_end: .skip 64
