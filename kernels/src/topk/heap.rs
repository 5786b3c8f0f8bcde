//! Selection of the `k` best with a heap that has the same layout as the C++ library's heap, because an unsorted TopK
//! returns the elements in that layout.

/// Returns the best `k` of the integers below `n`, where `k < n`. `before` returns whether the first of two integers is
/// better than the second; the relation need not be a consistent order.
pub(super) fn best(n: usize, k: usize, before: impl Fn(usize, usize) -> bool, sorted: bool) -> Vec<usize> {
    let mut heap = Heap { places: (0..=k).collect(), before };
    heap.build();
    heap.pop(k + 1);
    heap.places.truncate(k);
    for i in k + 1..n {
        if (heap.before)(i, heap.places[0]) {
            heap.pop(k);
            heap.places[k - 1] = i;
            heap.rise(k - 1, 0, i);
        }
    }
    if sorted {
        (2..=k).rev().for_each(|len| heap.pop(len));
    }
    heap.places
}

/// A binary heap of integers: the root is the worst, and no child is worse than its parent.
struct Heap<F> {
    places: Vec<usize>,
    before: F,
}

impl<F: Fn(usize, usize) -> bool> Heap<F> {
    fn build(&mut self) {
        let len = self.places.len();
        for at in (0..len / 2).rev() {
            self.sink(at, len, self.places[at]);
        }
    }

    /// Moves the root, the worst of the heap's first `len` numbers, to position `len - 1`.
    fn pop(&mut self, len: usize) {
        if len > 1 {
            let last = self.places[len - 1];
            self.places[len - 1] = self.places[0];
            self.sink(0, len - 1, last);
        }
    }

    /// Fills the hole at `top` with its worse child, level by level down to a leaf, where `new` is inserted and rises
    /// to its place.
    fn sink(&mut self, top: usize, len: usize, new: usize) {
        let mut hole = top;
        while 2 * hole + 2 < len {
            let (left, right) = (2 * hole + 1, 2 * hole + 2);
            let worse = if (self.before)(self.places[right], self.places[left]) { left } else { right };
            self.places[hole] = self.places[worse];
            hole = worse;
        }
        if 2 * hole + 1 < len {
            self.places[hole] = self.places[2 * hole + 1];
            hole = 2 * hole + 1;
        }
        self.rise(hole, top, new);
    }

    fn rise(&mut self, mut hole: usize, top: usize, new: usize) {
        while hole > top && (self.before)(self.places[(hole - 1) / 2], new) {
            self.places[hole] = self.places[(hole - 1) / 2];
            hole = (hole - 1) / 2;
        }
        self.places[hole] = new;
    }
}

#[cfg(test)]
mod tests {
    use super::best;

    /// Returns the indices of the `k` largest values; of equal values, the first counts as larger.
    fn of(values: &[f32], k: usize, sorted: bool) -> Vec<usize> {
        let before = |a: usize, b: usize| {
            let (x, y) = (values[a], values[b]);
            x > y || (x.partial_cmp(&y) != Some(std::cmp::Ordering::Less) && a < b)
        };
        best(values.len(), k, before, sorted)
    }

    #[test]
    fn unsorted_results_have_the_layout_of_tensorflows_heap() {
        assert_eq!(of(&[3., 2., 0., 1., 4.], 3, false), [1, 0, 4]);
        assert_eq!(of(&[0., 1., 4., 3., 2.], 3, false), [4, 2, 3]);
        assert_eq!(of(&[0., 3., 1., 2.], 3, false), [2, 3, 1]);
        assert_eq!(of(&[2., 0., 1., 3.], 2, false), [0, 3]);
    }

    #[test]
    fn sorted_results_are_in_descending_order() {
        let values = [5f32, 1., 9., 9., 2., 7., 9., 0.];
        for k in 1..values.len() {
            let mut all: Vec<usize> = (0..values.len()).collect();
            all.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
            assert_eq!(of(&values, k, true), all[..k]);
        }
    }
}
