//! Matrix products with cuBLASLt, which can add a bias and apply an activation in the same kernel.

use super::candidates::Candidates;
use super::workspace::Workspace;
use crate::engine::driver::{Epilogue, Product, StreamId};
use crate::engine::library;
use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::result::CublasError;
use cudarc::cublaslt::sys;
use device::{Error, Result};
use graph::DType;
use rustc_hash::FxHashMap;
use std::ffi::{c_int, c_void};

/// cuBLASLt on one GPU, with the descriptors and algorithms of products by [`ProductKey`]; `None` for products
/// without an algorithm.
#[derive(Debug)]
pub(super) struct BlasLt {
    handle: sys::cublasLtHandle_t,
    workspace: Option<Workspace>,
    cache: FxHashMap<ProductKey, Option<(Prepared, Candidates<Candidate>)>>,
}

// SAFETY: cuBLASLt lets any thread use a handle or descriptor, one thread at a time.
unsafe impl Send for BlasLt {}

/// Largest number of cached product keys; the cache is cleared when it is full, because shapes may keep
/// changing.
const MAX_CACHED: usize = 4096;

/// Largest number of algorithms that the library's heuristic is asked for.
const MAX_ALGORITHMS: usize = 8;

/// The alignment in bytes of the addresses of all products that are computed with this library.
const ALIGNMENT: u64 = 256;

/// The properties of a product by which its algorithm is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ProductKey {
    dtype: DType,
    tf32: bool,
    m: usize,
    n: usize,
    k: usize,
    flips: [bool; 2],
    has_bias: bool,
    relu: bool,
}

/// The descriptors of all products with one [`ProductKey`]. cuBLASLt is column-major, so the call computes the
/// transposed product with the factors in reverse order: `b` is the first factor, and the rows of each matrix
/// in memory are columns for the library.
#[derive(Debug)]
struct Prepared {
    description: Description,
    b: Layout,
    a: Layout,
    c: Layout,
}

/// One algorithm for a product, with its workspace.
#[derive(Debug)]
struct Candidate {
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// Size in bytes of the workspace that the algorithm needs.
    workspace: usize,
}

/// Declares descriptor types, each of which destroys its descriptor when dropped.
macro_rules! descriptors {
    ($($name:ident: $type:ident, $destroy:ident;)*) => {$(
        #[derive(Debug)]
        struct $name(sys::$type);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor has no other users.
                let _ = unsafe { sys::$destroy(self.0) };
            }
        }
    )*};
}

descriptors! {
    Description: cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy;
    Layout: cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy;
    Preference: cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy;
}

impl BlasLt {
    /// Creates a handle in this thread's context, for a GPU of this architecture.
    pub(super) fn open(architecture: u32) -> Result<BlasLt> {
        library::BLAS_LT.check()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the call writes the new handle.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&raw mut handle) })?;
        Ok(BlasLt { handle, workspace: Workspace::new(architecture), cache: FxHashMap::default() })
    }

    /// Enqueues a product and its epilogue with the fastest algorithm, found by timing in `timing_stream` if that is
    /// given. Returns `false`, without enqueueing anything, if the library has no algorithm; batches, unaligned
    /// addresses and complex numbers are left to cuBLAS.
    pub(super) fn multiply(
        &mut self,
        product: &Product,
        stream: StreamId,
        timing_stream: Option<StreamId>,
    ) -> Result<bool> {
        let bias = product.epilogue.as_ref().and_then(|epilogue| epilogue.bias);
        let addresses = [product.a, product.b, product.c, bias.unwrap_or(product.c)];
        let is_aligned = addresses.iter().all(|address| address.0 % ALIGNMENT == 0);
        if product.count != 1 || !is_aligned || product.dtype.is_complex() {
            return Ok(false);
        }
        let (handle, workspace) = (self.handle, self.workspace.as_ref());
        let key = ProductKey::of(product);
        if !self.cache.contains_key(&key) {
            if self.cache.len() >= MAX_CACHED {
                self.cache.clear();
            }
            let prepared = Prepared::new(handle, &key, workspace.map_or(0, Workspace::bytes))?;
            self.cache.insert(key, prepared);
        }
        let Some(Some((prepared, candidates))) = self.cache.get_mut(&key) else { return Ok(false) };
        candidates.enqueue(
            timing_stream,
            |_| true,
            |candidate| {
                let status = prepared.enqueue(handle, candidate, workspace, product, stream)?;
                match status.result() {
                    Ok(()) => Ok(true),
                    Err(error) if is_refusal(error) => Ok(false),
                    Err(error) => Err(failed("cublasLtMatmul", error)),
                }
            },
        )
    }
}

impl Drop for BlasLt {
    fn drop(&mut self) {
        self.cache.clear();
        // SAFETY: the handle has no other users.
        let _ = unsafe { sys::cublasLtDestroy(self.handle) };
    }
}

impl ProductKey {
    fn of(product: &Product) -> ProductKey {
        let Product { dtype, tf32, m, n, k, flips, epilogue, .. } = *product;
        let Epilogue { bias, relu } = epilogue.unwrap_or(Epilogue { bias: None, relu: false });
        ProductKey { dtype, tf32, m, n, k, flips, has_bias: bias.is_some(), relu }
    }

    /// Returns cuBLASLt's data type and compute type; `None` for dtypes that are left to cuBLAS.
    fn types(&self) -> Option<(sys::cudaDataType, sys::cublasComputeType_t)> {
        use sys::cublasComputeType_t::*;
        use sys::cudaDataType_t::*;
        Some(match self.dtype {
            DType::Float if self.tf32 => (CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32),
            DType::Float => (CUDA_R_32F, CUBLAS_COMPUTE_32F),
            DType::Half => (CUDA_R_16F, CUBLAS_COMPUTE_32F),
            DType::BFloat16 => (CUDA_R_16BF, CUBLAS_COMPUTE_32F),
            _ => return None,
        })
    }

    fn epilogue(&self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t::*;
        match (self.has_bias, self.relu) {
            (false, false) => CUBLASLT_EPILOGUE_DEFAULT,
            (false, true) => CUBLASLT_EPILOGUE_RELU,
            (true, false) => CUBLASLT_EPILOGUE_BIAS,
            (true, true) => CUBLASLT_EPILOGUE_RELU_BIAS,
        }
    }
}

impl Prepared {
    /// Creates the descriptors of a product and finds its algorithms, in the order of expected speed; returns
    /// `None` if there are no algorithms.
    fn new(
        handle: sys::cublasLtHandle_t,
        key: &ProductKey,
        workspace: usize,
    ) -> Result<Option<(Prepared, Candidates<Candidate>)>> {
        use sys::cublasLtMatmulDescAttributes_t::*;
        let Some((dtype, compute)) = key.types() else { return Ok(None) };
        let description = Description::new(compute)?;
        for (attribute, flip) in
            [(CUBLASLT_MATMUL_DESC_TRANSA, key.flips[1]), (CUBLASLT_MATMUL_DESC_TRANSB, key.flips[0])]
        {
            let operation = match flip {
                true => cublasOperation_t::CUBLAS_OP_T,
                false => cublasOperation_t::CUBLAS_OP_N,
            };
            description.set(attribute, &(operation as i32))?;
        }
        description.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &(key.epilogue() as u32))?;
        let ProductKey { m, n, k, flips, .. } = *key;
        let b = if flips[1] { Layout::new(dtype, k, n)? } else { Layout::new(dtype, n, k)? };
        let a = if flips[0] { Layout::new(dtype, m, k)? } else { Layout::new(dtype, k, m)? };
        let c = Layout::new(dtype, n, m)?;
        let preference = Preference::new(workspace)?;
        let mut found =
            [std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed(); MAX_ALGORITHMS];
        let mut count: c_int = 0;
        // SAFETY: all descriptors are alive, and the array has room for the number of answers asked for.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                handle,
                description.0,
                b.0,
                a.0,
                c.0,
                c.0,
                preference.0,
                MAX_ALGORITHMS as c_int,
                found.as_mut_ptr().cast(),
                &raw mut count,
            )
        };
        match status.result() {
            Ok(()) => {}
            Err(error) if is_refusal(error) => return Ok(None),
            Err(error) => return Err(failed("cublasLtMatmulAlgoGetHeuristic", error)),
        }
        // SAFETY: the library has written `count` answers.
        let returned =
            found.iter().take(usize::try_from(count).unwrap_or(0)).map(|f| unsafe { f.assume_init() });
        let candidates = returned
            .filter(|found| found.state.result().is_ok() && found.workspaceSize <= workspace)
            .map(|found| Candidate { algorithm: found.algo, workspace: found.workspaceSize })
            .collect();
        Ok(Candidates::new(candidates).map(|candidates| (Prepared { description, b, a, c }, candidates)))
    }

    /// Enqueues the product with one algorithm and returns the call's status. A status other than success means
    /// that nothing was enqueued.
    fn enqueue(
        &self,
        handle: sys::cublasLtHandle_t,
        candidate: &Candidate,
        workspace: Option<&Workspace>,
        product: &Product,
        stream: StreamId,
    ) -> Result<sys::cublasStatus_t> {
        if let Some(bias) = product.epilogue.as_ref().and_then(|epilogue| epilogue.bias) {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            self.description.set(attribute, &bias.0)?;
        }
        let (one, zero) = (1f32, 0f32);
        let c = product.c.0 as *mut c_void;
        // SAFETY: the addresses are of matrices of these layouts and of a bias of the product's columns. These
        // and the workspace, which has the size that the algorithm needs, live until the stream has executed
        // the product. The scalars have the scale type of these products, float32.
        Ok(unsafe {
            sys::cublasLtMatmul(
                handle,
                self.description.0,
                (&raw const one).cast(),
                product.b.0 as *const c_void,
                self.b.0,
                product.a.0 as *const c_void,
                self.a.0,
                (&raw const zero).cast(),
                c,
                self.c.0,
                c,
                self.c.0,
                &raw const candidate.algorithm,
                workspace.map_or(std::ptr::null_mut(), Workspace::address),
                candidate.workspace,
                stream.0 as sys::cudaStream_t,
            )
        })
    }
}

impl Description {
    /// Creates the descriptor of a product that is scaled in float32.
    fn new(compute: sys::cublasComputeType_t) -> Result<Description> {
        let mut description = std::ptr::null_mut();
        let scale = sys::cudaDataType_t::CUDA_R_32F;
        // SAFETY: the call writes the new descriptor's address.
        let status = unsafe { sys::cublasLtMatmulDescCreate(&raw mut description, compute, scale) };
        check("cublasLtMatmulDescCreate", status)?;
        Ok(Description(description))
    }

    /// Sets an attribute; `value` must have the type that NVIDIA documents for the attribute.
    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let (from, size) = ((&raw const *value).cast(), size_of::<T>());
        // SAFETY: the call reads the value, of the given size, before it returns.
        let status = unsafe { sys::cublasLtMatmulDescSetAttribute(self.0, attribute, from, size) };
        check("cublasLtMatmulDescSetAttribute", status)
    }
}

impl Layout {
    /// Creates the descriptor of a matrix whose columns follow each other without gaps.
    fn new(dtype: sys::cudaDataType, rows: usize, columns: usize) -> Result<Layout> {
        let mut layout = std::ptr::null_mut();
        let (rows, columns) = (rows as u64, columns as u64);
        // SAFETY: the call writes the new descriptor's address.
        let status =
            unsafe { sys::cublasLtMatrixLayoutCreate(&raw mut layout, dtype, rows, columns, rows as i64) };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Layout(layout))
    }
}

impl Preference {
    /// Creates a preference for algorithms with at most this workspace, in bytes.
    fn new(workspace: usize) -> Result<Preference> {
        let mut preference = std::ptr::null_mut();
        // SAFETY: the call writes the new descriptor's address.
        let status = unsafe { sys::cublasLtMatmulPreferenceCreate(&raw mut preference) };
        check("cublasLtMatmulPreferenceCreate", status)?;
        let preference = Preference(preference);
        let attribute = sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let bytes = workspace as u64;
        // SAFETY: the call reads the number, of the given size, before it returns.
        let status = unsafe {
            let from = (&raw const bytes).cast();
            sys::cublasLtMatmulPreferenceSetAttribute(preference.0, attribute, from, size_of::<u64>())
        };
        check("cublasLtMatmulPreferenceSetAttribute", status)?;
        Ok(preference)
    }
}

/// Returns whether the error means that the library does not support the product, rather than that the call
/// failed.
fn is_refusal(error: CublasError) -> bool {
    use sys::cublasStatus_t::*;
    matches!(error.0, CUBLAS_STATUS_NOT_SUPPORTED | CUBLAS_STATUS_INVALID_VALUE | CUBLAS_STATUS_ARCH_MISMATCH)
}

fn check(call: &str, status: sys::cublasStatus_t) -> Result<()> {
    status.result().map_err(|error| failed(call, error))
}

fn failed(call: &str, error: CublasError) -> Error {
    Error::internal(format!("cuBLASLt: {call} failed: {:?}", error.0))
}
