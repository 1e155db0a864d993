"""Pages escape what they are given."""

from jaxquard.report.html_page import Badge, html_page, html_paragraph, html_section, html_table


def test_pages_escape_what_they_are_given():
    table = html_table(["a", "b", "c"], [["x < y", "13.8 %", Badge(text="holds", kind="good")]])
    assert '<td>x &lt; y</td><td class="number">13.8&nbsp;%</td>' in table
    assert '<th>a</th><th class="number">b</th><th>c</th>' in table
    assert '<span class="badge good">holds</span>' in table
    page = html_page("A & B", html_paragraph("1 < 2"), [html_section("one", "R&D", table)])
    assert "<title>A &amp; B</title>" in page
    assert "<p>1 &lt; 2</p>" in page
    assert '<section id="one">\n<h2>R&amp;D</h2>' in page
