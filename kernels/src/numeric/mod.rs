//! Loops over elements that kernels of many families share: dispatch by type, vector code, threads, matrix products.

pub mod broadcast;
pub mod copied;
pub mod cpu_cache;
pub mod dispatch;
pub mod elementwise;
pub mod farm;
pub mod image;
pub(crate) mod index_permutation;
pub mod micro;
pub mod non_temporal;
pub mod operand_cache;
pub mod panel;
pub mod philox;
pub mod product;
pub mod scalar;
pub(crate) mod scratch;
pub mod simd;
pub mod strided;
pub mod threads;
pub mod transpose_block;
pub mod widen;
