// The operations of mlir-aie's dialects that ort_aie_ep.aie_kernels.mlir prints, for mlir-opt: their
// operands, results and required attributes. Written for this test after AIEOps.td, AIEAttrs.td and
// AIEX.td of mlir-aie at 7e00b579. Optional attributes are left out. So is everything that IRDL cannot
// describe: terminators, regions without one (aie.runtime_sequence) and symbol tables (aie.device);
// see mlir_opt.py.
irdl.dialect @aie {
  irdl.operation @tile {
    %col = irdl.base "#builtin.integer"
    %row = irdl.base "#builtin.integer"
    %result0 = irdl.is index
    irdl.results(%result0)
    irdl.attributes { "col" = %col, "row" = %row }
  }
  irdl.operation @lock {
    %operand0 = irdl.is index
    %lockID = irdl.base "#builtin.integer"
    %init = irdl.base "#builtin.integer"
    %sym_name = irdl.base "#builtin.string"
    %result0 = irdl.is index
    irdl.operands(%operand0)
    irdl.results(%result0)
    irdl.attributes { "lockID" = %lockID, "init" = %init, "sym_name" = %sym_name }
  }
  irdl.operation @buffer {
    %operand0 = irdl.is index
    %sym_name = irdl.base "#builtin.string"
    %address = irdl.base "#builtin.integer"
    %mem_bank = irdl.base "#builtin.integer"
    %result0 = irdl.base "!builtin.memref"
    irdl.operands(%operand0)
    irdl.results(%result0)
    irdl.attributes { "sym_name" = %sym_name, "address" = %address, "mem_bank" = %mem_bank }
  }
  irdl.operation @use_lock {
    %operand0 = irdl.is index
    %operand1 = irdl.is i32
    %action0 = irdl.is 2 : i32
    %action1 = irdl.is 1 : i32
    %action = irdl.any_of(%action0, %action1)
    irdl.operands(%operand0, %operand1)
    irdl.attributes { "action" = %action }
  }
  irdl.operation @mem {
    %operand0 = irdl.is index
    %result0 = irdl.is index
    irdl.operands(%operand0)
    irdl.results(%result0)
    %region = irdl.region
    irdl.regions(%region)
  }
  irdl.operation @memtile_dma {
    %operand0 = irdl.is index
    %result0 = irdl.is index
    irdl.operands(%operand0)
    irdl.results(%result0)
    %region = irdl.region
    irdl.regions(%region)
  }
  irdl.operation @dma_bd {
    %operand0 = irdl.base "!builtin.memref"
    %operandSegmentSizes = irdl.base "#builtin.dense_array"
    %static_offset = irdl.base "#builtin.integer"
    %static_len = irdl.base "#builtin.integer"
    irdl.operands(%operand0)
    irdl.attributes { "operandSegmentSizes" = %operandSegmentSizes, "static_offset" = %static_offset, "static_len" = %static_len }
  }
  irdl.operation @flow {
    %operand0 = irdl.is index
    %operand1 = irdl.is index
    %source_bundle0 = irdl.is 1 : i32
    %source_channel = irdl.base "#builtin.integer"
    %dest_bundle0 = irdl.is 1 : i32
    %dest_channel = irdl.base "#builtin.integer"
    irdl.operands(%operand0, %operand1)
    irdl.attributes { "source_bundle" = %source_bundle0, "source_channel" = %source_channel, "dest_bundle" = %dest_bundle0, "dest_channel" = %dest_channel }
  }
  irdl.operation @packet_flow {
    %ID = irdl.base "#builtin.integer"
    irdl.attributes { "ID" = %ID }
    %region = irdl.region
    irdl.regions(%region)
  }
  irdl.operation @packet_source {
    %operand0 = irdl.is index
    %bundle0 = irdl.is 1 : i32
    %channel = irdl.base "#builtin.integer"
    irdl.operands(%operand0)
    irdl.attributes { "bundle" = %bundle0, "channel" = %channel }
  }
  irdl.operation @packet_dest {
    %operand0 = irdl.is index
    %bundle0 = irdl.is 1 : i32
    %channel = irdl.base "#builtin.integer"
    irdl.operands(%operand0)
    irdl.attributes { "bundle" = %bundle0, "channel" = %channel }
  }
  irdl.operation @shim_dma_allocation {
    %operand0 = irdl.is index
    %sym_name = irdl.base "#builtin.string"
    %channel_dir0 = irdl.is 0 : i32
    %channel_dir1 = irdl.is 1 : i32
    %channel_dir = irdl.any_of(%channel_dir0, %channel_dir1)
    %channel_index = irdl.base "#builtin.integer"
    irdl.operands(%operand0)
    irdl.attributes { "sym_name" = %sym_name, "channel_dir" = %channel_dir, "channel_index" = %channel_index }
  }
  irdl.operation @core {
    %operand0 = irdl.is index
    %stack_size = irdl.base "#builtin.integer"
    %result0 = irdl.is index
    irdl.operands(%operand0)
    irdl.results(%result0)
    irdl.attributes { "stack_size" = %stack_size }
    %region = irdl.region
    irdl.regions(%region)
  }
}

irdl.dialect @aiex {
  irdl.operation @dma_configure_task_for {
    %alloc = irdl.base "#builtin.symbol_ref"
    %issue_token = irdl.base "#builtin.integer"
    %repeat_count = irdl.base "#builtin.integer"
    %result0 = irdl.is index
    irdl.results(%result0)
    irdl.attributes { "alloc" = %alloc, "issue_token" = %issue_token, "repeat_count" = %repeat_count }
    %region = irdl.region
    irdl.regions(%region)
  }
  irdl.operation @dma_start_task {
    %operand0 = irdl.is index
    irdl.operands(%operand0)
  }
  irdl.operation @dma_await_task {
    %operand0 = irdl.is index
    irdl.operands(%operand0)
  }
  irdl.operation @dma_free_task {
    %operand0 = irdl.is index
    irdl.operands(%operand0)
  }
  irdl.operation @"npu.rtp_write" {
    %operand0 = irdl.is i32
    %buffer = irdl.base "#builtin.symbol_ref"
    %index = irdl.base "#builtin.integer"
    irdl.operands(%operand0)
    irdl.attributes { "buffer" = %buffer, "index" = %index }
  }
  irdl.operation @set_lock {
    %operand0 = irdl.is index
    %value = irdl.base "#builtin.integer"
    irdl.operands(%operand0)
    irdl.attributes { "value" = %value }
  }
}
