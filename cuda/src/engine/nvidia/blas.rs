//! Matrix products with cuBLAS.

use super::workspace::Workspace;
use crate::engine::driver::{Product, StreamId};
use crate::engine::library;
use cudarc::cublas::result::{self, CublasError};
use cudarc::cublas::sys;
use device::{Error, Result};
use graph::DType;
use std::ffi::{c_int, c_void};

/// cuBLAS on one GPU.
#[derive(Debug)]
pub(super) struct Blas {
    handle: sys::cublasHandle_t,
    /// The CUDA stream that is set in the handle.
    stream: Option<StreamId>,
    workspace: Option<Workspace>,
}

// SAFETY: cuBLAS lets any thread use a handle, one thread at a time.
unsafe impl Send for Blas {}

impl Blas {
    /// Creates a handle in this thread's context, for a GPU of this architecture.
    pub(super) fn open(architecture: u32) -> Result<Blas> {
        library::BLAS.check()?;
        let handle = result::create_handle().map_err(failed)?;
        Ok(Blas { handle, stream: None, workspace: Workspace::new(architecture) })
    }

    /// Enqueues a batch of matrix products in `stream`.
    pub(super) fn multiply(&mut self, product: &Product, stream: StreamId) -> Result<()> {
        if self.stream != Some(stream) {
            // SAFETY: the stream lives as long as the driver that owns this handle.
            unsafe { result::set_stream(self.handle, stream.0 as sys::cudaStream_t) }.map_err(failed)?;
            if let Some(workspace) = &self.workspace {
                // Setting a stream resets the handle to the library's own workspace.
                // SAFETY: the workspace has this many bytes and lives as long as the handle.
                let set = unsafe {
                    sys::cublasSetWorkspace_v2(self.handle, workspace.address(), workspace.bytes())
                };
                set.result().map_err(failed)?;
            }
            self.stream = Some(stream);
        }
        let (dtype, compute) = types(product)?;
        let int = |n: usize| {
            c_int::try_from(n)
                .map_err(|_| Error::invalid(format!("a matrix with a side of {n} is too large")))
        };
        let (m, n, k, count) = (int(product.m)?, int(product.n)?, int(product.k)?, int(product.count)?);
        let operation = |flip| match flip {
            true if product.conjugates && product.dtype.is_complex() => sys::cublasOperation_t::CUBLAS_OP_C,
            true => sys::cublasOperation_t::CUBLAS_OP_T,
            false => sys::cublasOperation_t::CUBLAS_OP_N,
        };
        // The leading dimensions are the row lengths in memory. cuBLAS is column-major, so it sees each matrix
        // transposed and computes the transposed product, of the factors in reverse order.
        let (lda, ldb) = (if product.flips[0] { m } else { k }, if product.flips[1] { k } else { n });
        let (one, zero) = (Scalar::new(product.dtype, 1.0), Scalar::new(product.dtype, 0.0));
        // SAFETY: the addresses are of matrices of these sizes, which live until the stream has executed the
        // product; the scalars have the compute type.
        let status = unsafe {
            sys::cublasGemmStridedBatchedEx(
                self.handle,
                operation(product.flips[1]),
                operation(product.flips[0]),
                n,
                m,
                k,
                one.address(),
                product.b.0 as *const c_void,
                dtype,
                ldb.max(1),
                product.steps[1] as i64,
                product.a.0 as *const c_void,
                dtype,
                lda.max(1),
                product.steps[0] as i64,
                zero.address(),
                product.c.0 as *mut c_void,
                dtype,
                n.max(1),
                product.steps[2] as i64,
                count,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
            )
        };
        status.result().map_err(failed)
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: the handle has no other users.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// A real scalar factor, in the type in which a product is computed.
enum Scalar {
    Single([f32; 2]),
    Double([f64; 2]),
}

impl Scalar {
    fn new(dtype: DType, value: f64) -> Scalar {
        match dtype {
            DType::Double | DType::Complex128 => Scalar::Double([value, 0.0]),
            _ => Scalar::Single([value as f32, 0.0]),
        }
    }

    fn address(&self) -> *const c_void {
        match self {
            Scalar::Single(parts) => parts.as_ptr().cast(),
            Scalar::Double(parts) => parts.as_ptr().cast(),
        }
    }
}

/// Returns cuBLAS's data type and compute type for a product.
fn types(product: &Product) -> Result<(sys::cudaDataType, sys::cublasComputeType_t)> {
    use sys::cublasComputeType_t::*;
    use sys::cudaDataType_t::*;
    Ok(match product.dtype {
        DType::Float if product.tf32 => (CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
        DType::Float => (CUDA_R_32F, CUBLAS_COMPUTE_32F),
        DType::Double => (CUDA_R_64F, CUBLAS_COMPUTE_64F),
        DType::Half => (CUDA_R_16F, CUBLAS_COMPUTE_32F),
        DType::BFloat16 => (CUDA_R_16BF, CUBLAS_COMPUTE_32F),
        DType::Complex64 if product.tf32 => (CUDA_C_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
        DType::Complex64 => (CUDA_C_32F, CUBLAS_COMPUTE_32F),
        DType::Complex128 => (CUDA_C_64F, CUBLAS_COMPUTE_64F),
        other => return Err(Error::unimplemented(format!("no product of {other} on GPUs"))),
    })
}

fn failed(error: CublasError) -> Error {
    Error::internal(format!("cuBLAS failed: {:?}", error.0))
}
