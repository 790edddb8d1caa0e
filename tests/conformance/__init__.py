"""What this project says of Apple's GPU and frameworks, as tests that run on either of two backends.

On a Mac they ask the real thing; nothing is simulated there. Elsewhere the simulated Apple GPU takes its place, and
what only a Mac has is *not applicable*, never passed. ``make test`` runs them. ``make verify-mac`` runs them with a
report that can be sent (docs/first_hour_on_a_mac.md).

==================  ====================================================================================
`test_*`            the claims, by group: a file is a group
`conftest`          the pytest plugin: device, time limits, outcomes, and each result on disk at once
`claims`            what a test claims
`__main__`          ``make verify-mac``: one pytest process after the other, for one group each
`report`            one Markdown file to read, with the same as JSON at its end
==================  ====================================================================================

A claim is a test: the first paragraph of its docstring, or its name, is what is claimed; it passes if that holds. ::

    @pytest.mark.claim(used_in="notebook 10")
    def test_sums_are_right(evidence):
        \"\"\"A sum on the GPU is the CPU's.\"\"\"
        total = torch.ones(10**6, device="mps").sum().item()
        evidence("total", total)
        assert total == 10**6
"""
