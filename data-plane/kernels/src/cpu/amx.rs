//! AMX-INT8: the permission to use tiles, and the few tile instructions of the matrix kernel.
//!
//! The intrinsics are not in stable Rust, hence inline assembly; it is confined to this file. Tile 0 is the sums (16 rows of 16
//! `i32`), 1 the activations (rows of 32 signed bytes), 2 the weights (8 rows of 64 unsigned bytes: four inputs of sixteen
//! outputs a row). The processor renames tiles, so one set is enough to overlap products.

/// Whether the machine has AMX-INT8 and the system lets this process use it. Asks once.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn permitted() -> bool {
    use std::sync::OnceLock;
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(|| has_amx_int8() && request_tile_data())
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(super) fn permitted() -> bool {
    false
}

/// CPUID leaf 7: EDX bit 24 is AMX-TILE, bit 25 AMX-INT8; and XCR0 bits 17 and 18 say that the system saves tiles.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_amx_int8() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
    #[target_feature(enable = "xsave")]
    fn saved_state() -> u64 {
        // SAFETY: called only after CPUID said that the system uses XSAVE.
        unsafe { _xgetbv(0) }
    }
    const TILES: u32 = 0b11 << 24;
    const TILE_STATE: u64 = 0b11 << 17;
    let uses_xsave = __cpuid(1).ecx & 1 << 27 != 0;
    if __cpuid(0).eax < 7 || !uses_xsave || __cpuid_count(7, 0).edx & TILES != TILES {
        return false;
    }
    // SAFETY: CPUID says that XGETBV is there and enabled.
    unsafe { saved_state() & TILE_STATE == TILE_STATE }
}

/// Tile data is off until a process asks for it (Linux: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`).
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn request_tile_data() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this request takes two integers, touches no memory of ours and grants or refuses.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(target_arch = "x86_64")]
pub(super) use tiles::Tiles;

#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::asm;

    /// Bytes between two rows of a weight tile and of a stored sum tile.
    const ROW_BYTES: usize = 64;

    /// The tile registers of this thread, configured for some number of activation rows; released when dropped.
    #[derive(Debug)]
    pub(in crate::cpu) struct Tiles(());

    /// The 64-byte memory format of `LDTILECFG`, palette 1.
    #[repr(C, align(64))]
    struct Config([u8; 64]);

    impl Tiles {
        /// Configures for `rows` activation rows, 1 ..= 16.
        ///
        /// # Safety
        /// [`super::permitted`] said yes.
        pub(in crate::cpu) unsafe fn configure(rows: u8) -> Self {
            let mut config = Config([0; 64]);
            config.0[0] = 1;
            for (tile, num_rows, row_bytes) in [(0, rows, 64), (1, rows, 32), (2, 8, 64)] {
                config.0[16 + 2 * tile] = row_bytes;
                config.0[48 + tile] = num_rows;
            }
            // SAFETY: the machine has AMX (the caller's promise) and the configuration is a valid one of palette 1.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags)) };
            Self(())
        }

        /// `sums = activations · weights` of one block of 32 inputs, stored as `[16][16]` `i32`.
        ///
        /// # Safety
        /// `activations` and `weights` are valid for reading 512 bytes, `sums` for writing 1024.
        #[inline(always)]
        pub(in crate::cpu) unsafe fn multiply(
            &self,
            activations: *const i8,
            weights: *const u8,
            sums: *mut i32,
        ) {
            // SAFETY: the tiles are configured (`self` exists); the pointers are valid as the caller promised.
            unsafe {
                asm!(
                    "tileloadd tmm1, [{activations} + {half_row}]",
                    "tileloadd tmm2, [{weights} + {row}]",
                    "tilezero tmm0",
                    "tdpbsud tmm0, tmm1, tmm2",
                    "tilestored [{sums} + {row}], tmm0",
                    activations = in(reg) activations,
                    half_row = in(reg) ROW_BYTES / 2,
                    weights = in(reg) weights,
                    sums = in(reg) sums,
                    row = in(reg) ROW_BYTES,
                    options(nostack, preserves_flags),
                )
            }
        }
    }

    impl Drop for Tiles {
        fn drop(&mut self) {
            // SAFETY: the tiles are configured, so the instruction exists.
            unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
        }
    }
}
